"""The replies of the cases, played by the scripted engine to a real client over a socket: JSON, stream and session."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cases import replies
from tests.cases.numbers import case
from tests.cases.replies import REPLIES
from tests.server.http_kit import Running, chat_body, events_of, running, script


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(settings={"limits.sessions.count": 2000}) as found:
        yield found
        found.idle()


def some_splits(data: bytes) -> Iterator[list[bytes]]:
    """One piece, two at three points, and byte by byte."""
    yield [data]
    for part in (1, 2, 3):
        point = len(data) * part // 4
        yield [data[:point], data[point:]]
    yield [data[n : n + 1] for n in range(len(data))]


def body(reply: replies.Reply, pieces: list[bytes], **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = dict(more)
    if reply.tools:
        fields |= {"tools": [tool.definition for tool in reply.tools], "tool_choice": "auto" if reply.parse else "none"}
    if reply.stop:
        fields["stop"] = list(reply.stop)
    if reply.then == "length":
        fields["max_tokens"] = len(pieces)
    return chat_body(script(*pieces), **fields)


def assembled(events: list[dict[str, Any]]) -> tuple[str, list[tuple[str, dict[str, Any]]], str]:
    """Text, calls and finish of a stream, put together as the official clients do."""
    text, finish = "", ""
    calls: dict[int, dict[str, str]] = {}
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    for event in events:
        choice = event["choices"][0]
        text += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls", ()):
            call = calls.setdefault(delta["index"], {"name": "", "arguments": ""})
            call["name"] += delta["function"].get("name", "")
            call["arguments"] += delta["function"]["arguments"]
        finish = choice["finish_reason"] or finish
    assert sorted(calls) == list(range(len(calls)))
    return text, [(calls[n]["name"], json.loads(calls[n]["arguments"])) for n in sorted(calls)], finish


@case(*{reply.number: None for reply in REPLIES})
@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.id)
def test_json_stream_and_session_say_the_same(server: Running, reply: replies.Reply) -> None:
    expected = (reply.content, list(reply.calls), reply.expected_finish)
    for pieces in some_splits(reply.data):
        answer = server.http.post("/v1/chat/completions", json=body(reply, pieces))
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        message = choice["message"]
        called = [
            (c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())
        ]
        assert (message["content"] or "", called, choice["finish_reason"]) == expected, pieces
        assert message["content"] is not None or reply.calls

        session = server.session()
        streamed = server.http.post("/v1/chat/completions", json=body(reply, pieces, stream=True, session_id=session))
        assert assembled(events_of(streamed.text)) == expected, pieces

        service = server.server.service
        assert service is not None
        kept = service.core.sessions.get(session, "")
        assert kept is not None
        committed = kept.history[-1]
        stored = [(call.name, dict(call.arguments)) for call in committed.tool_calls]
        assert (committed.content, stored) == expected[:2], pieces
