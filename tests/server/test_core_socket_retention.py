"""The retention rules over sockets, with the embedded model: limits are pushed, and clients see what stays."""

import pytest

from tests.server.core_gate import RawClient, hold
from tests.server.http_kit import Running, chat_body, running, wait_for

pytestmark = pytest.mark.timeout(900)
BASE = {"maxOutputTokens": 64}


@pytest.fixture(scope="module")
def kept():
    with running(engine="torch", settings={"engine.contextTokens": 1024, "engine.prefillChunk": 64}) as found:
        yield found
        found.idle(60)


@pytest.fixture
def tiny(kept: Running):
    """The server with every default and no session."""
    push(kept, {})
    yield kept
    push(kept, {})
    for one in kept.http.get("/v1/sessions").json()["data"]:
        kept.http.delete(f"/v1/sessions/{one['id']}")
    kept.idle(60)


def push(server: Running, limits: dict) -> None:
    generation = server.state()["limitsGeneration"] + 1
    reply = server.admin.put("/admin/limits", json={"generation": generation, "limits": {**BASE, **limits}})
    assert reply.status_code == 200, reply.text


def error(reply) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def say(server: Running, session: str, text: str = "hello", **fields):
    return server.chat(text, session_id=session, max_tokens=3, **fields)


def cached(reply) -> int:
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def sessions(server: Running) -> list[str]:
    return [one["id"] for one in server.http.get("/v1/sessions").json()["data"]]


def engine_of(server: Running):
    return server.server.service._engine


def in_a_turn(server: Running, session: str):
    """A held turn of the session: the hold, and its client once begun."""
    point = hold(engine_of(server), "step")
    body = chat_body("held", session_id=session, max_tokens=3)
    return point, lambda: RawClient(server, body)


def test_a_count_evicts_the_least_recently_used(tiny: Running):
    push(tiny, {"sessions": {"count": 2}})
    first, second = tiny.session(), tiny.session()
    say(tiny, first).raise_for_status()
    third = tiny.session()
    assert error(tiny.http.get(f"/v1/sessions/{second}")) == (410, "session_expired")
    assert error(say(tiny, second)) == (410, "session_expired")
    assert sorted(sessions(tiny)) == sorted([first, third])


def test_a_session_in_a_turn_stays_and_a_new_one_is_429(tiny: Running):
    push(tiny, {"sessions": {"count": 1}})
    session = tiny.session()
    point, begin = in_a_turn(tiny, session)
    with point as held:
        client = begin()
        held.wait()
        refused = tiny.http.post("/v1/sessions", json={})
        assert error(refused) == (429, "sessions_full")
        assert refused.headers["retry-after"] == "1"
        assert error(say(tiny, session)) == (409, "session_busy")
        assert error(tiny.http.delete(f"/v1/sessions/{session}")) == (409, "session_busy")
    assert client.read()[0] == 200
    assert tiny.http.get(f"/v1/sessions/{session}").json()["turns"] == 1


def test_idle_sessions_go_and_their_ids_have_expired(tiny: Running):
    session = tiny.session()
    push(tiny, {"sessions": {"idle": "200ms"}})
    wait_for(lambda: session not in sessions(tiny), 30)
    assert error(say(tiny, session)) == (410, "session_expired")
    assert error(say(tiny, session[:-1] + ("0" if session[-1] != "0" else "1"))) == (404, "not_found")


def test_bytes_evict_idle_sessions_and_then_refuse(tiny: Running):
    tiny.session()
    talking = tiny.session()
    push(tiny, {"sessions": {"bytes": 2600}})
    say(tiny, talking, "word " * 100).raise_for_status()
    assert sessions(tiny) == [talking]
    before = tiny.http.get(f"/v1/sessions/{talking}").json()
    assert error(say(tiny, talking, "word " * 300)) == (400, "limits_exceeded")
    assert tiny.http.get(f"/v1/sessions/{talking}").json()["turns"] == before["turns"]


def test_a_history_that_has_no_room_leaves_its_turn_uncommitted(tiny: Running):
    session = tiny.session()
    say(tiny, session).raise_for_status()
    size = tiny.http.get(f"/v1/sessions/{session}").json()["history_bytes"]
    # Room for the question, none for the answer's fixed share.
    push(tiny, {"sessions": {"bytes": size + 256 + 10}})
    assert error(say(tiny, session, "more")) == (429, "session_full")
    assert tiny.http.get(f"/v1/sessions/{session}").json()["turns"] == 1
    push(tiny, {})
    say(tiny, session, "more").raise_for_status()


def test_lowered_limits_leave_a_running_turn_alone(tiny: Running):
    session, other = tiny.session(), tiny.session()
    point, begin = in_a_turn(tiny, session)
    with point as held:
        client = begin()
        held.wait()
        push(tiny, {"sessions": {"count": 1}, "prefixCache": {"count": 0}, "activeRequests": 1})
        assert sessions(tiny) == [session]
    assert client.read()[0] == 200
    assert tiny.http.get(f"/v1/sessions/{session}").json()["turns"] == 1
    assert error(tiny.http.get(f"/v1/sessions/{other}")) == (410, "session_expired")


def test_histories_survive_their_checkpoints(tiny: Running):
    session = tiny.session()
    say(tiny, session, "The number is nine.").raise_for_status()
    warm = say(tiny, session, "Say it again.")
    assert cached(warm) > 0
    push(tiny, {"prefixCache": {"count": 0}})
    assert "carousel_prefix_cache_bytes 0.0" in tiny.http.get("/metrics").text
    cold = say(tiny, session, "And again.")
    assert cached(cold) == 0
    assert tiny.http.get(f"/v1/sessions/{session}").json()["turns"] == 3


def test_checkpoints_go_by_idle_time_and_sessions_stay(tiny: Running):
    session = tiny.session()
    say(tiny, session).raise_for_status()
    push(tiny, {"prefixCache": {"idle": "200ms"}})
    wait_for(lambda: "carousel_prefix_cache_entries 0.0" in tiny.http.get("/metrics").text, 30)
    assert sessions(tiny) == [session]


def test_half_a_context_halves_what_a_request_reserves_and_no_slot(tiny: Running):
    def reserved(context: int) -> int:
        # As much output as the context leaves: the prompt is the same, so the sum is the context.
        session = tiny.session(context_tokens=context)
        prompt = say(tiny, session).json()["usage"]["prompt_tokens"]
        fresh = tiny.session(context_tokens=context)
        with hold(engine_of(tiny), "step") as held:
            body = chat_body("hello", session_id=fresh, max_tokens=context - prompt, request_id=f"r{context}")
            client = RawClient(tiny, body)
            held.wait()
            core = tiny.server.service.core
            [record] = list(core.registry)
            growth = core.ledger.get(record.number).checkpoint - engine_of(tiny).info.fixed_state_bytes
            tiny.http.post(f"/v1/requests/r{context}/cancel").raise_for_status()
        client.read()
        tiny.idle(60)
        return growth

    push(tiny, {"maxOutputTokens": 1024})
    slots = engine_of(tiny).free_slots()
    assert reserved(512) * 2 == reserved(1024)
    assert engine_of(tiny).free_slots() == slots
