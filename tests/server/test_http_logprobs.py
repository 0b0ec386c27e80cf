"""Logprobs in their four forms, over a socket: chat and completion, as JSON and as a stream. One for each token."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.http_kit import Running, chat_body, events_of, running, script

TOOLS = [{"type": "function", "function": {"name": "now"}}]
CALL = "<tool_call>\n<function=now>\n</function>\n</tool_call>"


@pytest.fixture(scope="module")
def speaking() -> Iterator[Running]:
    with running(engine="torch") as found:
        yield found
        found.idle(30)


def choices(server: Running, path: str, body: dict[str, Any], *, stream: bool) -> tuple[list[dict[str, Any]], int]:
    """The choice of the body, or those of the stream's chunks, and the completion tokens of the usage."""
    if not stream:
        reply = server.http.post(path, json=body).raise_for_status().json()
        return reply["choices"], reply["usage"]["completion_tokens"]
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    events = events_of(server.http.post(path, json=body).raise_for_status().text)
    return [event["choices"][0] for event in events[:-1]], events[-1]["usage"]["completion_tokens"]


def chat_tokens(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [token for one in found if one["logprobs"] for token in one["logprobs"]["content"]]


def joined(found: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The columns of a completion's logprobs, over all chunks."""
    shown = [one["logprobs"] for one in found if one["logprobs"]]
    return {name: [value for one in shown for value in one[name]] for name in shown[0]}


CHATS: list[tuple[str, dict[str, Any]]] = [
    ("text", chat_body(script("He", "llo"))),
    ("a rune in two tokens", chat_body(script("a", b"\xf0\x9f", b"\x9a\x80", "b"))),
    ("text that a stop cuts", chat_body(script("one", " two", " three"), stop=["two"])),
    ("text cut at the limit", chat_body(script("x", then="length"), max_tokens=7)),
    ("calls and the text before", chat_body(script("I look.", "\n", CALL[:9], CALL[9:]), tools=TOOLS)),
    ("a call that never ends", chat_body(script("I ", CALL[:20]), tools=TOOLS)),
]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("body", [row[1] for row in CHATS], ids=[row[0] for row in CHATS])
def test_a_chat_has_one_logprob_for_each_token(server: Running, body: dict[str, Any], stream: bool) -> None:
    asked = {**body, "logprobs": True, "top_logprobs": 1}
    found, count = choices(server, "/v1/chat/completions", asked, stream=stream)
    tokens = chat_tokens(found)
    assert len(tokens) == count > 0
    assert all(set(token) == {"token", "logprob", "bytes", "top_logprobs"} for token in tokens)
    assert all(len(token["top_logprobs"]) == 1 for token in tokens)
    plain, _ = choices(server, "/v1/chat/completions", body, stream=stream)
    assert all(one["logprobs"] is None for one in plain)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_a_completion_has_one_logprob_for_each_token(server: Running, stream: bool) -> None:
    found, count = choices(server, "/v1/completions", {"prompt": "x", "logprobs": 1}, stream=stream)
    columns = joined(found)
    assert set(columns) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(column) for column in columns.values()} == {count}
    assert "".join(one["text"] for one in found) == "ok"
    assert columns["text_offset"] == [0, 2]
    plain, _ = choices(server, "/v1/completions", {"prompt": "x"}, stream=stream)
    assert all(one["logprobs"] is None for one in plain)


def test_a_models_logprobs_are_the_same_in_json_and_stream_and_lead_with_the_greedy_token(speaking: Running) -> None:
    body = chat_body("Hello!", max_tokens=12, logprobs=True, top_logprobs=3)
    whole, count = choices(speaking, "/v1/chat/completions", body, stream=False)
    parts, streamed = choices(speaking, "/v1/chat/completions", body, stream=True)
    assert chat_tokens(whole) == chat_tokens(parts)
    assert len(chat_tokens(whole)) == count == streamed
    for token in chat_tokens(whole):
        values = [one["logprob"] for one in token["top_logprobs"]]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert token["top_logprobs"][0]["token"] == token["token"]
        assert token["logprob"] == values[0] <= 0
    text = b"".join(bytes(token["bytes"]) for token in chat_tokens(whole)).decode()
    assert text.startswith(whole[0]["message"]["content"])


def test_a_models_completion_has_the_same_logprobs_in_json_and_stream(speaking: Running) -> None:
    body = {"prompt": "The capital of", "max_tokens": 9, "logprobs": 2}
    whole, count = choices(speaking, "/v1/completions", body, stream=False)
    parts, streamed = choices(speaking, "/v1/completions", body, stream=True)
    assert joined(whole) == joined(parts)
    assert count == streamed == len(joined(whole)["tokens"])
    assert all(value <= 0 for value in joined(whole)["token_logprobs"])
    assert all(len(top) == 2 for top in joined(whole)["top_logprobs"])
