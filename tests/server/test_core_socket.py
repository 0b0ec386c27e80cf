"""The cancel table and the order of streams over sockets, with the embedded model; afterwards nothing is held."""

import threading
from itertools import pairwise

import pytest

from tests.server.core_gate import RawClient, around, hold
from tests.server.http_kit import Running, chat_body, events_of, lines_of, running, script, text_of, wait_for

PHASES = ["preparing", "queued", "prefill", "decode", "mtp_decode"]
pytestmark = pytest.mark.timeout(900)
SETTINGS = {
    "engine.prefillChunk": 64,
    "engine.contextTokens": 1024,
    "limits.activeRequests": 2,
    "limits.maxOutputTokens": 64,
}


@pytest.fixture(scope="module")
def tiny():
    with running(engine="torch", settings=SETTINGS) as found:
        yield found
        found.idle(60)


def engine_of(server: Running):
    return server.server.service._engine


def turns_of(server: Running, session: str) -> int:
    return server.http.get(f"/v1/sessions/{session}").json()["turns"]


def start(server: Running, session: str, phase: str, stream: bool) -> RawClient:
    # Its own id first: a prompt that an earlier cell left in the prefix cache would prefill nothing.
    text = session[-8:] + " Tell me about the sea and the ships on it. " * (12 if phase == "prefill" else 1)
    sampled = {"temperature": 0.8} if phase == "decode" else {}
    body = chat_body(text, session_id=session, request_id=f"cell-{session}", max_tokens=12, stream=stream, **sampled)
    return RawClient(server, body)


def held_at(server: Running, phase: str):
    """The call that a turn in this phase is about to make."""
    if phase == "preparing":
        return hold(server.server.stage.preparer, "prepare")
    method, after = {"queued": ("step", 0), "prefill": ("prefill", 1)}.get(phase, ("step", 2))
    return hold(engine_of(server), method, after=after)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("cause", ["api", "disconnect", "half_close"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_cancel_in_this_phase_has_its_outcome(tiny: Running, phase: str, cause: str, stream: bool):
    session = tiny.session(seed=3)
    others = []
    with held_at(tiny, phase) as point:
        if phase == "queued":
            others = [RawClient(tiny, chat_body(f"count {n}", max_tokens=6)) for n in range(2)]
            point.wait()
            wait_for(lambda: sum(tiny.state()["requests"].values()) == 2, 30)
        client = start(tiny, session, phase, stream)
        if phase == "queued":
            wait_for(lambda: open_phases(tiny).get(f"cell-{session}") == "queued", 30)
        else:
            point.wait()
        if cause == "api":
            answers = [tiny.http.post(f"/v1/requests/cell-{session}/cancel").status_code for _ in range(2)]
            # Once its final output is written a request is no longer known; that may be before the second asking.
            assert answers in ([200, 200], [200, 404])
        elif cause == "disconnect":
            client.drop()
            wait_for(lambda: f"cell-{session}" not in open_phases(tiny), 30)
        else:
            client.half_close()
    if cause != "disconnect":
        status, body = client.read()
        if cause == "half_close":
            assert status == 200, body
        elif stream and phase != "preparing":
            assert status == 200
            assert events_of(body)[-1]["error"]["code"] == "cancelled"
        else:
            assert status == 499
            assert '"cancelled"' in body
    for other in others:
        assert other.read()[0] == 200
    tiny.idle(60)
    assert turns_of(tiny, session) == (1 if cause == "half_close" else 0)
    assert tiny.state()["sessions"]["inFlight"] == 0
    assert tiny.http.delete(f"/v1/sessions/{session}").status_code == 200


def open_phases(server: Running) -> dict[str, str]:
    """Requests that are not decided yet."""
    data = server.http.get("/v1/requests").json()["data"]
    return {one["id"]: one.get("phase", one.get("state", "")) for one in data if "cancelled" not in str(one)}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("order", ["before the claim", "after the claim"])
def test_the_claim_decides_once_between_completion_and_cancel(tiny: Running, order: str, stream: bool):
    session, answers = tiny.session(), []
    core, service = tiny.server.service.core, tiny.server.service

    def cancel() -> None:
        from carousel_server.failure import Failure

        try:
            service.cancel("last", "")
            answers.append("cancelled")
        except Failure as failure:
            answers.append(failure.code)

    # The service takes the core's lock itself, so it is called around the turn's claim, not inside the core's.
    from carousel_server.local_turn import LocalTurn

    when = {"before": cancel} if order == "before the claim" else {"behind": cancel}
    with around(LocalTurn, "claim", **when):
        body = chat_body("hello", session_id=session, request_id="last", max_tokens=3, stream=stream)
        reply = tiny.http.post("/v1/chat/completions", json=body)
    if order == "before the claim":
        assert answers == ["cancelled"]
        assert '"cancelled"' in reply.text
        assert reply.status_code == (200 if stream else 499)
    else:
        assert answers == ["already_completed"]
        assert reply.status_code == 200
        assert '"cancelled"' not in reply.text
    tiny.idle(60)
    assert turns_of(tiny, session) == (order == "after the claim")
    assert core.ledger.total == 0


def test_once_the_finish_chunk_was_sent_the_turn_is_committed(tiny: Running):
    for n in range(5):
        session = tiny.session()
        client = RawClient(tiny, chat_body(f"hello {n}", session_id=session, max_tokens=2, stream=True))
        seen = b""
        while b'"finish_reason":"' not in seen:
            seen += client.socket.recv(64)
        client.drop()
        tiny.idle(60)
        assert turns_of(tiny, session) == 1


def test_a_cancelled_turn_leaves_the_next_one_as_if_it_had_never_been(tiny: Running):
    def second_turn(cancelled: bool) -> str:
        session = tiny.session(seed=11, temperature=1.0)
        tiny.chat("My name is Ada.", session_id=session, max_tokens=6).raise_for_status()
        if cancelled:
            with hold(engine_of(tiny), "step", after=3) as point:
                client = RawClient(tiny, chat_body("One more thing.", session_id=session, request_id="gone"))
                point.wait()
                tiny.http.post("/v1/requests/gone/cancel").raise_for_status()
            assert client.read()[0] == 499
        return tiny.chat("What is my name?", session_id=session, max_tokens=12).json()["choices"][0]["message"][
            "content"
        ]

    assert second_turn(cancelled=True) == second_turn(cancelled=False)


def test_two_streams_interleave_frame_by_frame(tiny: Running):
    order: list[int] = []

    def read(number: int) -> None:
        body = chat_body(f"Write about number {number}.", max_tokens=24, stream=True, temperature=1.0, seed=number)
        with tiny.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            order.extend(number for line in reply.iter_lines() if '"content":' in line and '"content":""' not in line)

    with hold(engine_of(tiny), "prefill") as point:
        threads = [threading.Thread(target=read, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        point.wait()
        wait_for(lambda: sum(tiny.state()["requests"].values()) == 2, 30)
    for thread in threads:
        thread.join(60)
    changes = sum(a != b for a, b in pairwise(order))
    assert set(order) == {0, 1}
    assert changes >= 10, order
    tiny.idle(60)


def test_a_reader_that_fills_its_queue_is_cancelled_and_holds_up_nobody():
    settings = {"engine.outputQueueBytes": 16384, "limits.socketTimeout": "60s", "limits.responseBytes": "64Mi"}
    with running(settings=settings) as server:
        session = server.session()
        huge = script("x" * 4000, then="length")
        client = RawClient(server, chat_body(huge, session_id=session, stream=True, max_tokens=3500))
        quick = server.chat(script("a", "b"))
        assert quick.json()["choices"][0]["message"]["content"] == "ab"
        wait_for(lambda: 'cancelled_total{cause="queue_full"} 1.0' in server.http.get("/metrics").text, 30)
        status, body = client.read()
        assert status == 200
        assert events_of(body)[-1]["error"]["code"] == "cancelled"
        server.idle()
        assert turns_of(server, session) == 0


def test_an_engine_failure_ends_its_turn_only(tiny: Running):
    session = tiny.session()
    tiny.chat("first", session_id=session, max_tokens=2).raise_for_status()
    engine = engine_of(tiny)
    for stream in (False, True):

        def fail(*_):
            from carousel_server.engine.protocol import EngineError

            raise EngineError("made to fail")

        with around(engine, "step", before=fail):
            reply = tiny.chat("second", session_id=session, max_tokens=4, stream=stream)
        assert reply.status_code == (200 if stream else 500)
        assert "generation_failed" in reply.text
        assert not stream or lines_of(reply)[-1] == "data: [DONE]"
    assert turns_of(tiny, session) == 1
    tiny.chat("third", session_id=session, max_tokens=2).raise_for_status()
    assert turns_of(tiny, session) == 2
    tiny.idle(60)


def test_streamed_json_and_committed_text_are_the_same(tiny: Running):
    fields = {"max_tokens": 10, "temperature": 1.0, "seed": 4}
    whole = tiny.chat("Say something.", **fields).json()["choices"][0]["message"]["content"]
    session = tiny.session()
    reply = tiny.chat("Say something.", session_id=session, stream=True, **fields)
    assert text_of(events_of(reply.text)) == whole
    assert tiny.server.service.core.sessions.get(session, "").history[-1].content == whole
