"""The official OpenAI client, unchanged, against a live server."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.server.http_kit import Running, begin, running, script, user, wait_for

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]


def call(a: int, b: int) -> str:
    return (
        f"<tool_call>\n<function=add>\n<parameter=a>\n{a}\n</parameter>\n<parameter=b>\n{b}\n</parameter>\n"
        "</function>\n</tool_call>"
    )


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=30) as found:
        yield found


def test_chat(client: OpenAI) -> None:
    reply = client.chat.completions.create(model="chat", messages=[user(script("Hello ", "there"))])
    assert reply.choices[0].message.content == "Hello there"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 0


def test_a_reply_can_be_sent_back_as_it_came(client: OpenAI) -> None:
    messages: Any = [user(script("one"))]
    reply = client.chat.completions.create(model="chat", messages=messages)
    messages += [reply.choices[0].message, user("next")]
    assert client.chat.completions.create(model="chat", messages=messages).choices[0].message.content == "ok"
    messages[1] = reply.choices[0].message.model_dump()
    assert client.chat.completions.create(model="chat", messages=messages).choices[0].message.content == "ok"


def test_a_stream_with_usage(client: OpenAI) -> None:
    stream: Any = client.chat.completions.create(
        model="chat", messages=[user(script("a", "b"))], stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "ab"
    assert chunks[-1].usage.completion_tokens == 3


def test_a_tool_round_trip_with_a_real_function_and_parallel_calls(client: OpenAI) -> None:
    messages: Any = [user(script("I add.", call(2, 3), "\n", call(40, 2)))]
    first = client.chat.completions.create(model="chat", messages=messages, tools=TOOLS)
    assert first.choices[0].finish_reason == "tool_calls"
    calls: Any = first.choices[0].message.tool_calls
    results = [sum(json.loads(c.function.arguments).values()) for c in calls]
    assert results == [5, 42]
    messages.append(first.choices[0].message)
    messages += [{"role": "tool", "tool_call_id": c.id, "content": str(r)} for c, r in zip(calls, results, strict=True)]
    messages.append(user("thanks"))
    second = client.chat.completions.create(model="chat", messages=messages, tools=TOOLS)
    assert second.choices[0].finish_reason == "stop"


def test_streamed_calls_add_up_with_the_clients_own_helper(client: OpenAI) -> None:
    messages: Any = [user(script(call(1, 2), "\n", call(3, 4)))]
    with client.chat.completions.stream(model="chat", messages=messages, tools=TOOLS) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert [json.loads(c.function.arguments) for c in message.tool_calls or []] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_a_session_of_two_turns(client: OpenAI, server: Running) -> None:
    session = server.session()
    for _ in range(2):
        client.chat.completions.create(model="chat", messages=[user("hi")], extra_body={"session_id": session})
    assert server.http.get(f"/v1/sessions/{session}").json()["turns"] == 2


def test_models_and_completions(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["chat"]
    assert client.models.retrieve("chat").id == "chat"
    reply = client.completions.create(model="chat", prompt="x", max_tokens=5, logprobs=1)
    assert reply.choices[0].text == "ok"
    assert reply.choices[0].logprobs is not None
    assert len(reply.choices[0].logprobs.tokens or []) == 2


def test_logprobs(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="chat",
        messages=[user(script("é", "x"))],
        logprobs=True,
        top_logprobs=1,
    )
    found = reply.choices[0].logprobs
    assert found is not None
    assert [bytes(token.bytes or []) for token in found.content or []][:2] == ["é".encode(), b"x"]
    assert reply.usage is not None
    assert len(found.content or []) == reply.usage.completion_tokens
    assert len((found.content or [])[0].top_logprobs) == 1


def test_errors_are_the_right_exceptions(client: OpenAI, server: Running) -> None:
    messages: Any = [user("x")]
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="chat", messages=messages, temperature=9)
    assert (bad.value.code, bad.value.param) == ("invalid_request", "temperature")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=messages)
    assert missing.value.code == "model_not_found"
    session = server.session()
    body: Any = {"messages": [user(script("x", then="stall"))], "session_id": session, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        _lines = begin(reply)
        with pytest.raises(openai.ConflictError):
            client.chat.completions.create(model="chat", messages=messages, extra_body={"session_id": session})
    server.idle(10)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="chat", messages=[user(script("x", then="error"))])
    with pytest.raises(openai.APIError) as broken:
        list(client.chat.completions.create(model="chat", messages=[user(script("x", then="error"))], stream=True))
    assert broken.value.code == "generation_failed"
    lost = f"0.{'0' * 16}.{'0' * 48}"
    with pytest.raises(openai.APIStatusError) as gone:
        client.chat.completions.create(model="chat", messages=messages, extra_body={"session_id": lost})
    assert gone.value.status_code == 410


def test_a_key_that_is_missing_is_an_authentication_error(tmp_path: Any) -> None:
    (tmp_path / "team").write_text("sk-1")
    with running(api_keys=tmp_path) as server:
        for key, good in (("sk-1", True), ("sk-2", False)):
            with OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0) as client:
                if good:
                    assert client.models.list().data[0].id == "chat"
                else:
                    with pytest.raises(openai.AuthenticationError):
                        client.models.list()


def test_a_full_queue_is_a_rate_limit_error_and_is_retried() -> None:
    with running(settings={"limits.activeRequests": 1, "limits.queuedRequests": 0}) as server:
        body: Any = {"messages": [user(script("x", then="stall"))], "stream": True, "request_id": "r"}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            _lines = begin(reply)
            with OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as once:
                messages: Any = [user("x")]
                with pytest.raises(openai.RateLimitError):
                    once.chat.completions.create(model="chat", messages=messages)
            server.http.post("/v1/requests/r/cancel")
            with OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=5) as patient:
                patient.chat.completions.create(model="chat", messages=[user("x")])


def test_closing_a_stream_cancels_it(client: OpenAI, server: Running) -> None:
    stream: Any = client.chat.completions.create(model="chat", messages=[user(script("x", then="stall"))], stream=True)
    next(iter(stream))
    stream.close()
    server.idle(10)


def test_curl_streams(server: Running) -> None:
    import subprocess

    body = json.dumps({"messages": [user(script("from ", "curl"))], "stream": True})
    command = ["curl", "-sN", server.url + "/v1/chat/completions", "-H", "content-type: application/json", "-d", body]
    text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    assert '"content":"curl"' in text
    assert text.endswith("data: [DONE]\n\n")


def test_a_client_that_times_out_on_json_frees_its_request(server: Running) -> None:
    body = {"messages": [user(script("x", then="stall"))]}
    with pytest.raises(httpx.ReadTimeout):
        server.http.post("/v1/chat/completions", json=body, timeout=0.5)
    wait_for(lambda: server.state()["requests"]["running"] == 0, 10)
