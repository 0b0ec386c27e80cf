"""What a client may send: every field, every refusal, in words that help."""

import json
import time
from typing import Any

import pytest

from tests.server.http_kit import Running, chat_body, running, script, user

REFUSED: list[tuple[str, dict[str, Any], str, str, str]] = [
    # what, fields over a plain body, code, param, words of the message
    ("a misspelt field", {"temprature": 1}, "unknown_field", "temprature", "Did you mean temperature?"),
    ("a field of nobody", {"zzz": 1}, "unknown_field", "zzz", "docs/api.md"),
    ("several choices", {"n": 3}, "unsupported", "n", "one choice"),
    ("an effort", {"reasoning_effort": "high"}, "unsupported", "reasoning_effort", "effort"),
    ("a guided grammar", {"guided_json": {}}, "unsupported", "guided_json", "response_format"),
    ("a number as text", {"temperature": "1"}, "invalid_request", "temperature", "number"),
    ("half a token", {"max_tokens": 1.5}, "invalid_request", "max_tokens", "integer"),
    ("a boolean as number", {"max_tokens": True}, "invalid_request", "max_tokens", "integer"),
    ("a temperature of 3", {"temperature": 3}, "invalid_request", "temperature", "less than or equal to 2"),
    ("a top_p of 2", {"top_p": 2}, "invalid_request", "top_p", "less than or equal to 1"),
    ("no tokens", {"max_tokens": 0}, "invalid_request", "max_tokens", "greater than or equal to 1"),
    ("an endless number", {"temperature": 1e400}, "invalid_request", "temperature", "finite"),
    ("an empty stop", {"stop": ""}, "invalid_request", "stop", "at least 1"),
    ("an empty stop in a list", {"stop": ["a", ""]}, "invalid_request", "stop[1]", "at least 1"),
    ("five stops", {"stop": list("abcde")}, "invalid_request", "stop", "at most 4"),
    ("top_logprobs alone", {"top_logprobs": 2}, "invalid_request", "top_logprobs", "logprobs: true"),
    ("21 alternatives", {"logprobs": True, "top_logprobs": 21}, "invalid_request", "top_logprobs", "20"),
    ("usage without a stream", {"stream_options": {"include_usage": True}},
     "invalid_request", "stream_options", "stream"),
    ("an odd stream option", {"stream": True, "stream_options": {"x": 1}},
     "unknown_field", "stream_options.x", "field"),
    ("an id with blanks", {"request_id": "a b"}, "invalid_request", "request_id", "pattern"),
    ("a bias on a word", {"logit_bias": {"hello": 1}}, "invalid_request", "logit_bias.hello", "pattern"),
    ("a bias beyond the ids", {"logit_bias": {"99999999": 1}}, "invalid_request", "logit_bias", "no token id"),
    ("a bias of 101", {"logit_bias": {"5": 101}}, "invalid_request", "logit_bias.5", "100"),
    ("another model", {"model": "gpt"}, "model_not_found", "model", "chat"),
    ("too many tokens", {"max_tokens": 4097}, "limits_exceeded", "max_tokens", "4096"),
    ("a context over the server's", {"context_tokens": 10**6}, "context_length_exceeded", "context_tokens", "8192"),
    ("an unknown session", {"session_id": "nope"}, "not_found", "session_id", "nope"),
    ("a choice without tools", {"tool_choice": "required"}, "invalid_request", "tool_choice", "tools"),
    ("an odd choice", {"tool_choice": "any"}, "invalid_request", "tool_choice", "auto"),
    ("a format without a schema", {"response_format": {"type": "json_schema"}},
     "invalid_request", "response_format", "missing"),
    ("an odd format", {"response_format": {"type": "xml"}}, "invalid_request", "response_format.type", "json_object"),
    ("no messages", {"messages": []}, "invalid_request", "messages", "at least 1"),
    ("messages as text", {"messages": "hi"}, "invalid_request", "messages", "list"),
    ("metadata of numbers", {"metadata": {"a": 1}}, "invalid_request", "metadata.a", "string"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "param", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_a_request_is_refused_with_its_field_and_a_hint(
    server: Running, fields: dict[str, Any], code: str, param: str, words: str
) -> None:
    body = json.dumps({**chat_body(), **fields}).replace("Infinity", "1e400")
    reply = server.http.post("/v1/chat/completions", content=body)
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert words in error["message"]
    assert reply.status_code == (404 if code in ("not_found", "model_not_found") else 400)


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("nulls everywhere", dict.fromkeys(("temperature", "stop", "tools", "tool_choice", "seed", "user", "zzz", "n"))),
    ("an integer temperature", {"temperature": 1}),
    ("integers as JSON may write them", {"max_tokens": 9.0, "seed": 7.0, "top_k": 4e1, "n": 1.0}),
    ("n of 1", {"n": 1}),
    ("a negative seed", {"seed": -1}),
    ("a seed of 64 bits", {"seed": 2**64 - 1}),
    ("top_k as vLLM turns it off", {"top_k": -1}),
    ("every knob", {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "presence_penalty": 0.1,
                    "frequency_penalty": -0.1, "repetition_penalty": 1.1, "logit_bias": {"5": -100}}),
    ("one stop", {"stop": "###"}),
    ("four stops", {"stop": ["a1", "b1", "c1", "d1"]}),
    ("no tools", {"tools": []}),
    ("both limits", {"max_tokens": 1, "max_completion_tokens": 5}),
    ("labels", {"user": "u1", "metadata": {"team": "a"}}),
    ("a text format", {"response_format": {"type": "text"}}),
    ("a choice of none", {"tool_choice": "none"}),
    ("no model", {"model": None}),
]  # fmt: skip


@pytest.mark.parametrize("fields", [row[1] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
def test_a_request_is_taken(server: Running, fields: dict[str, Any]) -> None:
    reply = server.http.post("/v1/chat/completions", json={**chat_body(script("x1", "y1")), **fields})
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] == "x1y1"


BROKEN: list[tuple[str, bytes, str]] = [
    ("nothing", b"", "empty"),
    ("cut off", b'{"messages": [', "not valid JSON"),
    ("a list", b"[]", "array"),
    ("a number", b"7", "number"),
    ("bad UTF-8", b'{"a": "\xff\xfe"}', "not valid JSON"),
    ("half a surrogate", b'{"a": "\\ud800"}', "not valid JSON"),
    ("not a number", b'{"temperature": NaN}', "not valid JSON"),
    ("deep nesting", b"[" * 100_000 + b"]" * 100_000, "recursion"),
    ("deep objects", b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "recursion"),
    ("a huge number", b'{"seed": ' + b"9" * 100_000 + b"}", "out of range"),
    ("a byte order mark", b"\xef\xbb\xbf{}", "not valid JSON"),
]


@pytest.mark.parametrize(("body", "words"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_a_broken_body_is_400_at_once_without_a_trace(server: Running, body: bytes, words: str) -> None:
    began = time.monotonic()
    reply = server.http.post("/v1/chat/completions", content=body)
    assert time.monotonic() - began < 2
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
    assert "Traceback" not in reply.text


MESSAGES: list[tuple[str, list[Any], str, str]] = [
    ("no role", [{"content": "x"}], "messages[0]", "role is one of"),
    ("an odd role", [{"role": "robot", "content": "x"}], "messages[0]", "role is one of"),
    ("no user", [{"role": "assistant", "content": "x"}], "messages", "no user message"),
    ("a late system", [user("x"), {"role": "system", "content": "y"}], "messages[1]", "first message"),
    ("a late developer", [user("x"), {"role": "developer", "content": "y"}], "messages[1]", "first message"),
    ("an unknown key", [{"role": "user", "content": "x", "name": "bob"}], "messages[0].name", "not a field"),
    ("content as number", [{"role": "user", "content": 5}], "messages[0].content", "string"),
    ("an image", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
     "messages[0].content[0]", "image_url is not supported"),
    ("a part without text", [{"role": "user", "content": [{"type": "text"}]}],
     "messages[0].content[0].text", "missing"),
    ("a result of no call", [user("x"), {"role": "tool", "tool_call_id": "c9", "content": "1"}],
     "messages[1].tool_call_id", "'c9'"),
    ("a message that is text", ["hi"], "messages[0]", "role is one of"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "param", "words"), [m[1:] for m in MESSAGES], ids=[m[0] for m in MESSAGES])
def test_a_message_is_refused_with_its_index(server: Running, messages: list[Any], param: str, words: str) -> None:
    reply = server.http.post("/v1/chat/completions", json={"messages": messages})
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert error["param"] == param
    assert words in error["message"]


def call_message(arguments: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}, "{}"], ids=["text", "object", "empty object"])
def test_call_arguments_come_as_text_or_object(server: Running, arguments: Any) -> None:
    messages = [user("x"), call_message(arguments), {"role": "tool", "tool_call_id": "c1", "content": "7"}]
    assert server.http.post("/v1/chat/completions", json={"messages": messages}).status_code == 200


@pytest.mark.parametrize("arguments", ["", "[1]", "nope", '{"a": NaN}', '{"a": 1e999}'])
def test_call_arguments_that_are_no_object_are_refused_with_the_index(server: Running, arguments: str) -> None:
    messages = [user("x"), call_message(arguments)]
    reply = server.http.post("/v1/chat/completions", json={"messages": messages})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([TOOL, TOOL], "tools[1]"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        ([{"type": "web_search"}], "tools[0].type"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], "tools[0].function.parameters"),
    ],
    ids=["twice", "no function", "a name with a blank", "another type", "parameters as list"],
)
def test_a_tool_is_refused_with_its_place(server: Running, tools: list[Any], param: str) -> None:
    reply = server.chat(tools=tools)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_a_format_and_free_calls_exclude_each_other(server: Running) -> None:
    form = {"type": "json_object"}
    assert server.chat(tools=[TOOL], response_format=form).json()["error"]["param"] == "response_format"
    assert server.chat(tools=[TOOL], response_format=form, tool_choice="required").status_code == 400


def test_a_test_engine_says_that_it_enforces_nothing(server: Running) -> None:
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
    for fields in ({"tools": [strict]}, {"tools": [TOOL], "tool_choice": "required"}):
        reply = server.chat(**fields)
        assert reply.status_code == 400
        assert "serve a model" in reply.json()["error"]["message"]
    assert server.chat(tools=[strict], tool_choice="none").status_code == 200


def test_a_named_choice_must_be_declared(server: Running) -> None:
    reply = server.chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}})
    assert reply.json()["error"]["param"] == "tool_choice"
    assert "declared: f" in reply.json()["error"]["message"]


def test_a_body_over_the_limit_is_413_before_it_is_read() -> None:
    with running(settings={"limits.requestBytes": "64Ki"}) as server:
        reply = server.http.post("/v1/chat/completions", json=chat_body("x" * 70_000))
        assert reply.status_code == 413
        assert "65536" in reply.json()["error"]["message"]
        with server.connect() as sock:
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999999\r\n\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")
        with server.connect() as sock:  # chunked: no length is declared, the count decides
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(5):
                sock.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")
        server.idle()


def test_every_path_and_method_that_is_not_there_has_an_error_in_the_same_shape(server: Running) -> None:
    reply = server.http.get("/v1/nothing")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
    reply = server.http.get("/v1/chat/completions")
    assert (reply.status_code, reply.json()["error"]["code"]) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "POST"


def test_completions_take_text_and_ids(server: Running) -> None:
    for prompt in ("hello", [72, 105], [72.0, 105], ["hello"]):
        reply = server.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 3})
        assert reply.status_code == 200, reply.text
        assert reply.json()["object"] == "text_completion"
    for prompt, words in (
        (["a", "b"], "at most 1"),
        ([99_999_999], "no token id"),
        ("", "at least 1"),
        ([], "at least 1"),
    ):
        reply = server.http.post("/v1/completions", json={"prompt": prompt})
        assert reply.status_code == 400
        assert words in reply.json()["error"]["message"], prompt
    assert (
        server.http.post("/v1/completions", json={"prompt": "x", "echo": True}).json()["error"]["code"] == "unsupported"
    )
    assert (
        server.http.post("/v1/completions", json={"prompt": "x", "tools": []}).json()["error"]["code"]
        == "unknown_field"
    )
