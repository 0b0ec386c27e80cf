"""The retention rules against a server process with the embedded model: limits are pushed, clients see what stays."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from carousel_server.allocations import cpu_state
from carousel_server.limits import EngineSettings
from carousel_server.presets import PRESETS

from tests.server.core_gate import GatedServer, RawClient, gated
from tests.server.http_kit import chat_body, wait_for

pytestmark = pytest.mark.timeout(900)
BASE = {"maxOutputTokens": 64}
STATE = cpu_state(PRESETS["tiny"], 1024, EngineSettings().drafts)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedServer]:
    flags = ["--engine-context-tokens", "1024", "--engine-prefill-chunk", "64"]
    with gated(tmp_path_factory.mktemp("gated"), *flags) as found:
        yield found


@pytest.fixture
def tiny(process: GatedServer) -> Iterator[GatedServer]:
    """The server with every default and no session; afterwards it holds nothing."""
    push(process, {})
    yield process
    push(process, {})
    for one in sessions(process):
        process.http.delete(f"/v1/sessions/{one}")
    assert process.idle(60)["reservedBytes"] == 0


def push(server: GatedServer, limits: dict) -> None:
    generation = server.state()["limitsGeneration"] + 1
    reply = server.admin.put("/admin/limits", json={"generation": generation, "limits": {**BASE, **limits}})
    assert reply.status_code == 200, reply.text


def error(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def say(server: GatedServer, session: str, text: str = "hello", **fields) -> httpx.Response:
    return server.chat(text, session_id=session, max_tokens=3, **fields)


def cached(reply: httpx.Response) -> int:
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def sessions(server: GatedServer) -> list[str]:
    return [one["id"] for one in server.http.get("/v1/sessions").json()["data"]]


def begin(server: GatedServer, session: str) -> RawClient:
    """A turn of the session, for as long as a gate holds it."""
    return RawClient(server, chat_body("held", session_id=session, max_tokens=3))


def test_a_count_evicts_the_least_recently_used(tiny: GatedServer):
    push(tiny, {"sessions": {"count": 2}})
    first, second = tiny.session(), tiny.session()
    say(tiny, first).raise_for_status()
    third = tiny.session()
    assert error(tiny.http.get(f"/v1/sessions/{second}")) == (410, "session_expired")
    assert error(say(tiny, second)) == (410, "session_expired")
    assert sorted(sessions(tiny)) == sorted([first, third])


def test_a_session_in_a_turn_stays_and_a_new_one_is_429(tiny: GatedServer):
    push(tiny, {"sessions": {"count": 1}})
    session = tiny.session()
    with tiny.gate.hold("step"):
        client = begin(tiny, session)
        tiny.gate.wait()
        refused = tiny.http.post("/v1/sessions", json={})
        assert error(refused) == (429, "sessions_full")
        assert refused.headers["retry-after"] == "1"
        assert error(say(tiny, session)) == (409, "session_busy")
        assert error(tiny.http.delete(f"/v1/sessions/{session}")) == (409, "session_busy")
    assert client.read()[0] == 200
    assert tiny.turns_of(session) == 1


def test_idle_sessions_go_and_their_ids_have_expired(tiny: GatedServer):
    session = tiny.session()
    push(tiny, {"sessions": {"idle": "200ms"}})
    wait_for(lambda: session not in sessions(tiny), 30)
    assert error(say(tiny, session)) == (410, "session_expired")
    assert error(say(tiny, session[:-1] + ("0" if session[-1] != "0" else "1"))) == (404, "not_found")


def test_bytes_evict_idle_sessions_and_then_refuse(tiny: GatedServer):
    tiny.session()
    talking = tiny.session()
    push(tiny, {"sessions": {"bytes": 2600}})
    say(tiny, talking, "word " * 100).raise_for_status()
    assert sessions(tiny) == [talking]
    before = tiny.turns_of(talking)
    assert error(say(tiny, talking, "word " * 300)) == (400, "limits_exceeded")
    assert tiny.turns_of(talking) == before


def test_a_history_that_has_no_room_leaves_its_turn_uncommitted(tiny: GatedServer):
    session = tiny.session()
    say(tiny, session).raise_for_status()
    size = tiny.http.get(f"/v1/sessions/{session}").json()["history_bytes"]
    # Room for the question, none for the answer's fixed share.
    push(tiny, {"sessions": {"bytes": size + 256 + 10}})
    assert error(say(tiny, session, "more")) == (429, "session_full")
    assert tiny.turns_of(session) == 1
    push(tiny, {})
    say(tiny, session, "more").raise_for_status()


def test_lowered_limits_leave_a_running_turn_alone(tiny: GatedServer):
    session, other = tiny.session(), tiny.session()
    with tiny.gate.hold("step"):
        client = begin(tiny, session)
        tiny.gate.wait()
        push(tiny, {"sessions": {"count": 1}, "prefixCache": {"count": 0}, "activeRequests": 1})
        assert sessions(tiny) == [session]
    assert client.read()[0] == 200
    assert tiny.turns_of(session) == 1
    assert error(tiny.http.get(f"/v1/sessions/{other}")) == (410, "session_expired")


def test_histories_survive_their_checkpoints(tiny: GatedServer):
    session = tiny.session()
    say(tiny, session, "The number is nine.").raise_for_status()
    warm = say(tiny, session, "Say it again.")
    assert cached(warm) > 0
    push(tiny, {"prefixCache": {"count": 0}})
    assert "carousel_prefix_cache_bytes 0.0" in tiny.http.get("/metrics").text
    cold = say(tiny, session, "And again.")
    assert cached(cold) == 0
    assert tiny.turns_of(session) == 3


def test_checkpoints_go_by_idle_time_and_sessions_stay(tiny: GatedServer):
    session = tiny.session()
    say(tiny, session).raise_for_status()
    push(tiny, {"prefixCache": {"idle": "200ms"}})
    wait_for(lambda: "carousel_prefix_cache_entries 0.0" in tiny.http.get("/metrics").text, 30)
    assert sessions(tiny) == [session]


def test_lowered_bytes_evict_the_least_recently_used_first(tiny: GatedServer):
    kept = [tiny.session() for _ in range(3)]
    for one in kept:
        say(tiny, one, "word " * 50).raise_for_status()
    size = max(one["history_bytes"] for one in tiny.http.get("/v1/sessions").json()["data"])
    push(tiny, {"sessions": {"bytes": 2 * size + 10}})
    assert sessions(tiny) == kept[1:]


def test_a_deleted_session_has_expired(tiny: GatedServer):
    session = tiny.session()
    say(tiny, session).raise_for_status()
    assert tiny.http.delete(f"/v1/sessions/{session}").status_code == 200
    assert error(tiny.http.delete(f"/v1/sessions/{session}")) == (410, "session_expired")
    assert error(say(tiny, session)) == (410, "session_expired")


def test_an_older_generation_changes_nothing(tiny: GatedServer):
    push(tiny, {"sessions": {"count": 2}})
    before = tiny.state()
    late = {"generation": before["limitsGeneration"] - 1, "limits": {**BASE, "sessions": {"count": 9}}}
    assert error(tiny.admin.put("/admin/limits", json=late)) == (409, "stale_generation")
    assert tiny.state()["limits"] == before["limits"]


def test_a_waiting_request_that_new_limits_can_never_hold_is_told(tiny: GatedServer):
    push(tiny, {"activeRequests": 1})
    session = tiny.session()
    with tiny.gate.hold("step"):
        client = begin(tiny, tiny.session())
        tiny.gate.wait()
        waiting = RawClient(tiny, chat_body("word " * 300, session_id=session, max_tokens=3))
        wait_for(lambda: tiny.state()["requests"]["queued"] == 1, 30)
        few = STATE.fixed + 100 * STATE.token
        push(tiny, {"activeRequests": 1, "checkpointBytes": few})
        status, body = waiting.read()
        assert (status, "limits_exceeded" in body) == (400, True)
    assert client.read()[0] == 200
    assert tiny.turns_of(session) == 0


def test_a_checkpoint_in_use_outlives_lowered_limits(tiny: GatedServer):
    session = tiny.session()
    say(tiny, session).raise_for_status()
    with tiny.gate.hold("adopt"):
        client = begin(tiny, session)
        tiny.gate.wait()
        push(tiny, {"prefixCache": {"count": 0}})
        assert tiny.metric("carousel_prefix_cache_entries") == 1
    assert client.read()[0] == 200
    assert tiny.metric("carousel_prefix_cache_entries") == 0


def test_the_newest_use_is_zero_during_a_turn_and_grows_after_it(tiny: GatedServer):
    session = tiny.session()
    with tiny.gate.hold("step"):
        client = begin(tiny, session)
        tiny.gate.wait()
        assert tiny.state()["sessions"]["newestUseSeconds"] == 0
    client.read()
    tiny.idle(60)
    wait_for(lambda: tiny.state()["sessions"]["newestUseSeconds"] > 0)


def test_half_a_context_halves_the_growth_that_a_request_reserves_and_no_slot(tiny: GatedServer):
    def reserved(context: int) -> int:
        # As much output as the context leaves: the prompt is the same, so the sum is the context.
        session = tiny.session(context_tokens=context)
        prompt = say(tiny, session).json()["usage"]["prompt_tokens"]
        fresh = tiny.session(context_tokens=context)
        with tiny.gate.hold("step"):
            body = chat_body("hello", session_id=fresh, max_tokens=context - prompt, request_id=f"r{context}")
            client = RawClient(tiny, body)
            tiny.gate.wait()
            [view] = tiny.http.get("/v1/requests").json()["data"]
            assert view["reserved_bytes"] == tiny.state()["reservedBytes"]
            tiny.http.post(f"/v1/requests/r{context}/cancel").raise_for_status()
        client.read()
        tiny.idle(60)
        return int(view["reserved_bytes"])

    push(tiny, {"maxOutputTokens": 1024})
    before = tiny.gate.ask("free_slots"), tiny.state()["planGpuBytes"]
    quarter, half, whole = reserved(256), reserved(512), reserved(1024)
    assert whole - half == 2 * (half - quarter) == 512 * STATE.token
    assert (tiny.gate.ask("free_slots"), tiny.state()["planGpuBytes"]) == before


def test_limits_that_the_machine_cannot_hold_change_nothing(tiny: GatedServer):
    before = tiny.state()
    more = {"generation": before["limitsGeneration"] + 1, "limits": {**BASE, "prefixCache": {"bytes": "900Ti"}}}
    assert error(tiny.admin.put("/admin/limits", json=more)) == (400, "limits_exceeded")
    assert (tiny.state()["limits"], tiny.state()["limitsGeneration"]) == (before["limits"], before["limitsGeneration"])


def test_another_keys_session_does_not_exist(tmp_path: Path):
    (keys := tmp_path / "keys").mkdir()
    for name in ("alice", "bob"):
        (keys / name).write_text(f"the-key-of-{name}")
    with gated(tmp_path, "--engine-context-tokens", "1024", "--api-keys", str(keys)) as server:
        alice, bob = ({"authorization": f"Bearer the-key-of-{name}"} for name in ("alice", "bob"))
        session = server.http.post("/v1/sessions", json={}, headers=alice).json()["id"]
        body = chat_body("hello", session_id=session, max_tokens=3)
        assert server.http.post("/v1/chat/completions", json=body, headers=alice).status_code == 200
        path = f"/v1/sessions/{session}"
        for refused in (
            server.http.get(path, headers=bob),
            server.http.delete(path, headers=bob),
            server.http.post("/v1/chat/completions", json=body, headers=bob),
        ):
            assert error(refused) == (404, "not_found")
        assert server.http.get("/v1/sessions", headers=bob).json()["data"] == []
        assert server.http.get(path, headers=alice).json()["turns"] == 1
        assert server.idle(60)["reservedBytes"] == 0
