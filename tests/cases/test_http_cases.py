"""Cases K over a socket, and what cases J say of cancelling: each against a live scripted server."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cases.numbers import case
from tests.server.http_kit import Running, begin, chat_body, events_of, running, script, text_of, wait_for


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as found:
        yield found
        found.idle()


@case("K1")
def test_usage_comes_in_a_chunk_of_its_own_and_only_when_asked_for(server: Running) -> None:
    asked = events_of(server.chat(script("a"), stream=True, stream_options={"include_usage": True}).text)
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["total_tokens"] > 0
    assert all(event["choices"] and event["usage"] is None for event in asked[:-1])
    for options in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": None}):
        silent = events_of(server.chat(script("a"), stream=True, **options).text)
        assert all(len(event["choices"]) == 1 and "usage" not in event for event in silent)


@case("K2")
def test_max_completion_tokens_is_max_tokens_and_wins(server: Running) -> None:
    endless = script("a", then="length")
    for fields, count in (
        ({"max_completion_tokens": 3}, 3),
        ({"max_tokens": 4}, 4),
        ({"max_tokens": 9, "max_completion_tokens": 2}, 2),
    ):
        reply = server.chat(endless, **fields).json()
        assert reply["usage"]["completion_tokens"] == count
        assert reply["choices"][0]["message"]["content"] == "a" * count
        assert reply["choices"][0]["finish_reason"] == "length"


@case("K3")
def test_a_prompt_longer_than_the_context_is_400_with_both_numbers(server: Running) -> None:
    for stream in (False, True):
        reply = server.chat("x" * 9000, stream=stream)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["context_tokens"] == 8192
        assert error["prompt_tokens"] > 9000
        assert str(error["prompt_tokens"]) in error["message"]
        assert "8192" in error["message"]
    reply = server.chat("x" * 90, context_tokens=64)
    assert reply.json()["error"]["context_tokens"] == 64
    left = server.chat("x" * 8000, max_tokens=4000).json()["error"]
    assert (left["code"], left["param"]) == ("context_length_exceeded", "max_tokens")


@case("K4")
def test_several_choices_are_refused(server: Running) -> None:
    for path, body in (("chat/completions", chat_body(n=3)), ("completions", {"prompt": "x", "n": 2})):
        reply = server.http.post(f"/v1/{path}", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n")
    assert server.chat(n=1).status_code == 200


@case("K6")
def test_a_schema_is_enforced_or_refused_with_the_reason() -> None:
    def form(schema: dict[str, Any]) -> dict[str, Any]:
        return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}

    with running(engine="torch") as server:
        for schema in ({"type": "object", "properties": {"a": {"type": "nothing"}}}, {"$ref": "#/nowhere"}):
            reply = server.chat(response_format=form(schema))
            assert reply.status_code == 400, reply.text
            assert reply.json()["error"]["param"].startswith("response_format")
        wanted = {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}},
            "required": ["colour"],
            "additionalProperties": False,
        }
        reply = server.chat("Name a colour.", response_format=form(wanted), max_tokens=60)
        assert json.loads(reply.json()["choices"][0]["message"]["content"])["colour"] in ("red", "green")
        server.idle(30)


@case("K7")
def test_health_is_503_until_the_model_is_there() -> None:
    loading = threading.Event()
    with running(loading=loading) as server:
        assert server.http.get("/health").status_code == 503
        loading.set()
        wait_for(lambda: server.http.get("/health").status_code == 200)
        assert server.chat().status_code == 200


@case("K8")
def test_the_same_seed_gives_the_same_text_beside_other_chats() -> None:
    with running(engine="uniform", settings={"limits.activeRequests": 4, "engine.gpuStateSlots": 1}) as server:
        fields: dict[str, Any] = {"temperature": 1.0, "seed": 42, "max_tokens": 24}

        def text(**more: Any) -> str:
            return str(server.chat("seeded", **{**fields, **more}).json()["choices"][0]["message"]["content"])

        alone = text()
        assert text(seed=43) != alone
        others = [threading.Thread(target=lambda n=n: text(seed=n, max_tokens=60)) for n in range(3)]
        for thread in others:
            thread.start()
        assert [text() for _ in range(3)] == [alone] * 3
        for thread in others:
            thread.join(30)
        server.idle()


def test_j1_a_client_that_leaves_in_prefill_ends_it_between_chunks(server: Running) -> None:
    # prefill_ms stands first, so that every chunk after it is slow
    content = '{"prefill_ms": 300, "pieces": ["x"], "pad": "' + "p" * 6000 + '"}'
    sock = server.connect()
    body = json.dumps({"messages": [{"role": "user", "content": content}], "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    wait_for(lambda: [r["phase"] for r in server.http.get("/v1/requests").json()["data"]] == ["prefill"])
    sock.close()
    server.idle(10)
    assert 'carousel_requests_cancelled_total{cause="disconnect"}' in server.http.get("/metrics").text


def test_j5_a_reader_that_stands_still_stalls_nobody_else(server: Running) -> None:
    sock = server.connect()
    body = json.dumps(chat_body(script("z" * 3000, then="length"), stream=True, max_tokens=2000)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    for _ in range(5):
        assert server.chat(script("quick")).json()["choices"][0]["message"]["content"] == "quick"
    wait_for(lambda: 'cause="queue_full"' in server.http.get("/metrics").text, 20)
    sock.close()
    server.idle(15)


def test_j7_cancel_of_a_queued_request_costs_no_token() -> None:
    with running(settings={"limits.activeRequests": 1}) as server:
        first = chat_body(script("x", then="stall"), stream=True, request_id="first")
        queued = chat_body(script("never"), stream=True, request_id="second")
        with (
            server.http.stream("POST", "/v1/chat/completions", json=first) as one,
            server.http.stream("POST", "/v1/chat/completions", json=queued) as two,
        ):
            _one, rest = begin(one), begin(two)
            assert server.http.post("/v1/requests/second/cancel").status_code == 200
            events = events_of("\n".join(rest))
            assert [event["error"]["code"] for event in events] == ["cancelled"]
            assert server.http.post("/v1/requests/unknown/cancel").status_code == 404
            server.http.post("/v1/requests/first/cancel")
        server.idle()


def test_j8_a_cancelled_turn_leaves_the_session_as_it_was() -> None:
    with running(engine="uniform") as server:
        fields: dict[str, Any] = {"temperature": 1.0, "max_tokens": 8}

        def say(session: str, text: str) -> str:
            reply = server.chat(text, session_id=session, **fields).json()
            return str(reply["choices"][0]["message"]["content"])

        plain, disturbed = server.session(seed=5), server.session(seed=5)
        assert say(plain, "one") == say(disturbed, "one")
        body = chat_body("lost", session_id=disturbed, stream=True, temperature=1.0, max_tokens=4000, request_id="r")
        with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = begin(reply)
            assert server.http.post("/v1/requests/r/cancel").status_code == 200
            assert "cancelled" in "\n".join(lines)
        wait_for(lambda: not server.http.get(f"/v1/sessions/{disturbed}").json()["in_flight"])
        assert server.http.get(f"/v1/sessions/{disturbed}").json()["turns"] == 1
        assert say(plain, "two") == say(disturbed, "two")
        server.idle()


def test_a_request_that_ended_is_cancelled_no_more(server: Running) -> None:
    body = chat_body(script("a"), stream=True, request_id="ended")
    with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        text = "\n".join(reply.iter_lines())
    assert text_of(events_of(text)) == "a"
    began = time.monotonic()
    assert server.http.post("/v1/requests/ended/cancel").status_code in (404, 409)
    assert time.monotonic() - began < 5
