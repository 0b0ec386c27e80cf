"""The order of a stream, what it shows while it waits, and how it ends."""

import json
import socket
import threading
import time

import httpx
import pytest

from tests.server.http_kit import (
    Running,
    begin,
    chat_body,
    events_of,
    lines_of,
    running,
    script,
    text_of,
    wait_for,
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {"type": "object", "properties": {"glob": {"type": "string"}, "depth": {"type": "integer"}}},
        },
    }
]
CALL = (
    "<tool_call>\n<function=find>\n<parameter=glob>\n*.py\n</parameter>\n<parameter=depth>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)


def test_a_stream_is_role_then_text_then_finish_then_done(server: Running) -> None:
    reply = server.chat(script("Hel", "lo ", "world"), stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-accel-buffering"] == "no"
    assert "no-transform" in reply.headers["cache-control"]
    events = events_of(reply.text)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(events) == "Hello world"
    assert [e["choices"][0]["finish_reason"] for e in events] == [None] * (len(events) - 1) + ["stop"]
    assert all("usage" not in e for e in events)
    assert len({e["id"] for e in events}) == 1
    assert lines_of(reply)[-1] == "data: [DONE]"


def test_usage_comes_once_with_no_choices_when_it_was_asked_for(server: Running) -> None:
    events = events_of(server.chat(script("a"), stream=True, stream_options={"include_usage": True}).text)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 2
    assert events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert all(e["usage"] is None for e in events[:-1])


def test_calls_are_streamed_as_a_name_chunk_and_argument_chunks(server: Running) -> None:
    body = chat_body(script("I look.\n\n", CALL), stream=True, tools=TOOLS)
    events = events_of(server.http.post("/v1/chat/completions", json=body).text)
    deltas = [e["choices"][0]["delta"] for e in events]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert calls[0]["index"] == 0
    assert calls[0]["type"] == "function"
    assert calls[0]["function"] == {"name": "find", "arguments": ""}
    assert all("id" not in call and "name" not in call["function"] for call in calls[1:])
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"glob": "*.py", "depth": 2}
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert text_of(events) == "I look."


def test_stream_json_and_session_are_the_same(server: Running) -> None:
    for pieces in (("plain ", "text"), ("I look.\n", CALL), (CALL,), ("cut <tool_call>\n<function=find>",)):
        streamed = events_of(server.chat(script(*pieces), stream=True, tools=TOOLS).text)
        session = server.session(tools=TOOLS)
        whole = server.chat(script(*pieces), session_id=session).json()["choices"][0]
        assert whole["message"]["content"] in (text_of(streamed), None)
        assert whole["finish_reason"] == streamed[-1]["choices"][0]["finish_reason"]
        calls = [c for e in streamed for c in e["choices"][0]["delta"].get("tool_calls", [])]
        arguments = "".join(c["function"]["arguments"] for c in calls)
        assert [c["function"]["arguments"] for c in whole["message"].get("tool_calls", [])] == (
            [arguments] if calls else []
        )
        committed = server.server.service.core.sessions.get(session, "").history[-1]  # type: ignore[union-attr]
        assert (committed.content or None) == (whole["message"]["content"] or None)
        assert [dict(c.arguments) for c in committed.tool_calls] == ([json.loads(arguments)] if calls else [])


def test_a_failure_in_a_stream_is_an_error_event_and_done(server: Running) -> None:
    events = events_of(server.chat(script("some ", "text", then="error"), stream=True).text)
    assert text_of(events[:-1]) == "some text"
    assert events[-1]["error"]["code"] == "generation_failed"
    reply = server.chat(script("some ", "text", then="error"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "generation_failed")


def test_headers_come_at_once_and_comments_say_where_the_request_is() -> None:
    with running(settings={"limits.activeRequests": 1}) as server:
        first = server.connect()
        send(first, chat_body(script("x", then="stall"), stream=True))
        assert b"200 OK" in first.recv(65536)
        began = time.monotonic()
        with server.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as second:
            assert time.monotonic() - began < 1.0
            assert second.status_code == 200
            lines = second.iter_lines()
            assert next(lines) == ": queued 1"
            assert [next(lines) for _ in range(3)][1] == ": queued 1"  # again after two seconds
            assert 1.5 < time.monotonic() - began < 4
            first.close()
            text = "\n".join(lines)
        assert text.endswith("data: [DONE]\n")
        server.idle()


def test_a_long_prefill_shows_its_progress(server: Running) -> None:
    body = chat_body(script("x" * 4000, "y", prefill_ms=60), stream=True)
    with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        first = next(line for line in reply.iter_lines() if line.startswith(": prefill "))
    done, total = map(int, first.removeprefix(": prefill ").split("/"))
    assert 0 < done <= total
    assert total > 4000
    server.idle()


def test_a_stream_that_is_cancelled_ends_with_the_event_and_done(server: Running) -> None:
    body = chat_body(script("x", then="stall"), stream=True, request_id="to-cancel")
    with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = reply.iter_lines()
        while "x" not in next(lines):
            pass
        assert server.http.post("/v1/requests/to-cancel/cancel").status_code == 200
        assert server.http.post("/v1/requests/to-cancel/cancel").status_code in (200, 404)
        events = events_of("\n".join(lines))
    assert events[-1]["error"]["code"] == "cancelled"
    server.idle()


def test_a_json_request_that_is_cancelled_gets_499(server: Running) -> None:
    found: list[httpx.Response] = []
    body = chat_body(script("x", then="stall"), request_id="c2")
    thread = threading.Thread(target=lambda: found.append(server.http.post("/v1/chat/completions", json=body)))
    thread.start()
    wait_for(lambda: server.http.post("/v1/requests/c2/cancel").status_code == 200)
    thread.join(10)
    assert (found[0].status_code, found[0].json()["error"]["code"]) == (499, "cancelled")
    server.idle()


def test_cancelling_what_has_ended_or_never_was_is_404(server: Running) -> None:
    assert server.chat(request_id="done-1").status_code == 200
    assert server.http.post("/v1/requests/done-1/cancel").status_code == 404
    assert server.http.post("/v1/requests/never/cancel").json()["error"]["code"] == "not_found"


def test_a_reply_that_is_decided_cannot_be_cancelled_any_more() -> None:
    # A JSON reply larger than any socket's buffer: decided before its first byte, written only as it is read.
    room = {"limits.responseBytes": "16Mi", "engine.outputQueueBytes": "16Mi", "limits.sessions.bytes": "64Mi"}
    with running(settings=room) as server:
        session = server.session()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.settimeout(60)
        pieces = script("z" * 4000, then="length")
        send(sock, chat_body(pieces, session_id=session, request_id="decided", max_tokens=2500), close=True)
        assert sock.recv(1) == b"H"
        for _ in range(2):
            late = server.http.post("/v1/requests/decided/cancel")
            assert (late.status_code, late.json()["error"]["code"]) == (409, "already_completed")
        head, _, body = receive_all(sock).partition(b"\r\n\r\n")
        assert head.startswith(b"TTP/1.1 200 OK")
        assert len(json.loads(body)["choices"][0]["message"]["content"]) == 10_000_000
        sock.close()
        server.idle(10)
        assert server.http.get(f"/v1/sessions/{session}").json()["turns"] == 1
        gone = server.http.post("/v1/requests/decided/cancel")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


def test_an_id_in_use_is_409(server: Running) -> None:
    body = chat_body(script("x", then="stall"), stream=True, request_id="twice")
    with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        _rest = begin(reply)
        assert server.chat(request_id="twice").json()["error"]["code"] == "request_id_in_use"
        assert [r["id"] for r in server.http.get("/v1/requests").json()["data"]] == ["twice"]
        server.http.post("/v1/requests/twice/cancel")
    server.idle()
    assert server.chat(request_id="twice").json()["id"] == "twice"


def test_a_session_takes_one_turn_at_a_time(server: Running) -> None:
    session = server.session()
    body = chat_body(script("x", then="stall"), stream=True, session_id=session, request_id="s1")
    with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        _rest = begin(reply)
        busy = server.chat(session_id=session)
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "session_busy")
        assert server.http.delete(f"/v1/sessions/{session}").status_code == 409
        server.http.post("/v1/requests/s1/cancel")
    server.idle()
    assert server.http.get(f"/v1/sessions/{session}").json()["turns"] == 0


def test_a_client_that_closes_its_stream_frees_everything_soon(server: Running) -> None:
    for stream in (True, False):
        sock = server.connect()
        send(sock, chat_body(script("x", then="stall"), stream=stream))
        wait_for(lambda: server.state()["requests"]["running"] == 1)
        sock.close()
        server.idle(5)


def test_a_half_closed_client_is_no_disconnect(server: Running) -> None:
    for stream in (True, False):
        with server.connect() as sock:
            send(sock, chat_body(script("a", "b", "c", delay_ms=250), stream=stream))
            sock.shutdown(socket.SHUT_WR)
            text = receive_all(sock)
        assert b"HTTP/1.1 200 OK" in text
        assert (b"[DONE]" in text) if stream else (b'"content":"abc"' in text)
    server.idle()


def test_a_client_that_half_closes_its_body_is_gone(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        sock.shutdown(socket.SHUT_WR)
        assert receive_all(sock) == b""
    server.idle()


@pytest.mark.parametrize("stream", [True, False])
def test_a_reader_that_stands_still_is_cancelled_after_the_socket_timeout(stream: bool) -> None:
    with running(settings={"limits.socketTimeout": "1s", "engine.outputQueueBytes": "64Mi"}) as server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        send(sock, chat_body(script("z" * 3000, then="length"), stream=stream, max_tokens=900))
        wait_for(lambda: server.state()["requests"]["running"] == 1)
        server.idle(15)
        wait_for(lambda: len(server.server.ports[0].server_state.connections) == 1)  # this test's own client
        cancelled = 'carousel_requests_cancelled_total{cause="write_timeout"} 1.0' in server.http.get("/metrics").text
        assert cancelled == stream  # a JSON reply was claimed before its first byte
        sock.close()


def test_a_slow_but_steady_reader_is_served_to_the_end() -> None:
    with running(settings={"limits.socketTimeout": "1s", "engine.outputQueueBytes": "64Mi"}) as server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.settimeout(20)
        send(sock, chat_body(script("z" * 3000, then="length"), stream=True, max_tokens=300))
        received = b""
        while b"[DONE]" not in received[-100:]:
            chunk = sock.recv(32768)
            assert chunk, f"cut after {len(received)} bytes"
            received += chunk
            time.sleep(0.015)
        sock.close()
        assert received.count(b"zzzz") > 0
        server.idle()


def test_two_hundred_idle_connections_hold_nothing_up(server: Running) -> None:
    idle = [server.connect() for _ in range(200)]
    began = time.monotonic()
    assert server.chat(script("quick")).json()["choices"][0]["message"]["content"] == "quick"
    assert time.monotonic() - began < 2
    for sock in idle:
        sock.close()
    wait_for(lambda: len(server.server.ports[0].server_state.connections) < 10)


def test_fifty_clients_that_leave_at_random_moments_leave_nothing_behind(server: Running) -> None:
    import random

    rng = random.Random(7)
    sockets = []
    for n in range(50):
        sock = server.connect()
        body = chat_body(script(*["ab "] * 20, delay_ms=rng.choice([0, 1, 5])), stream=bool(n % 2))
        data = raw(body)
        sock.sendall(data[: rng.randrange(1, len(data))] if n % 5 == 0 else data)
        sockets.append((rng.random() * 0.5, sock))
    for delay, sock in sorted(sockets, key=lambda item: item[0]):
        time.sleep(delay / 25)
        sock.close()
    server.idle(15)
    wait_for(lambda: len(server.server.ports[0].server_state.connections) < 10)
    wait_for(lambda: len(server.server.ports[0].server_state.tasks) == 0)


def raw(body: dict, *, close: bool = False) -> bytes:  # type: ignore[type-arg]
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n"
    return (head + ("connection: close\r\n" if close else "") + "\r\n").encode() + content


def send(sock: socket.socket, body: dict, *, close: bool = False) -> None:  # type: ignore[type-arg]
    sock.sendall(raw(body, close=close))


def receive_all(sock: socket.socket) -> bytes:
    found = b""
    while chunk := sock.recv(65536):
        found += chunk
    return found
