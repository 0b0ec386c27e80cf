"""The cancel table: every phase, every cause, streamed or not. A cell leaves the session as it was, or commits it."""

import pytest
from carousel_server.failure import Failure
from carousel_server.turn import Completion, Failed, RngState

from tests.server.core_kit import Bench

PHASES = ["preparing", "queued", "prefill", "decode", "mtp_decode", "completing"]
CAUSES = ["api", "disconnect", "write_timeout", "queue_full", "shutdown", "time_out"]


def cancel(bench: Bench, turn, cause: str) -> None:
    """By the API where the cause is the API, else as the writer or the worker does it."""
    if cause == "api":
        bench.service.cancel(turn.id, "")
    else:
        turn.cancel(cause)


def reach(bench: Bench, session: str, phase: str, *, stream: bool = True):
    """A turn of the session that stands in this phase."""
    sampled = {} if phase == "mtp_decode" else {"temperature": 1.0}
    turn = bench.begin(session, text="y" * 600, stream=stream, **sampled)
    if phase == "preparing":
        return turn
    if phase == "queued":
        bench.busy = [bench.start(text=f"busy {n}", max_tokens=400) for n in range(bench.core.limits.active_requests)]
        bench.steps(len(bench.busy))
    bench.submit(turn, max_tokens=40)
    if phase == "prefill":
        bench.steps(1)
    if phase in ("decode", "mtp_decode"):
        bench.steps(6)
        assert bench.engine.stats.drafts_accepted > 0 or phase == "decode"
    if phase in ("completing", "claimed"):
        bench.run()
    assert turn.record.phase == phase.removeprefix("mtp_")
    return turn


def prepared_bench() -> tuple[Bench, str]:
    bench = Bench(drafts=2, chunk=256)
    session = bench.session(seed=7)
    bench.chat(session, text="first", max_tokens=5, temperature=1.0)
    return bench, session


def next_text(bench: Bench, session: str) -> str:
    return bench.chat(session, text="next", max_tokens=12, temperature=1.0).text


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("phase", PHASES)
def test_a_cancel_before_the_claim_leaves_the_session_as_it_was(phase: str, cause: str, stream: bool):
    bench, session = prepared_bench()
    kept = bench.core.sessions.get(session, "")
    before = (kept.history, kept.rng, kept.bytes, kept.turns)
    turn = reach(bench, session, phase, stream=stream)
    cancel(bench, turn, cause)
    cancel(bench, turn, cause)
    for busy in getattr(bench, "busy", ()):
        busy.cancel("api")
        busy.close()
    bench.run()
    if phase == "preparing":
        with pytest.raises(Failure) as refused:
            bench.submit(turn)
        code, status = refused.value.code, refused.value.status
    else:
        end = bench.read(turn).end
        if isinstance(end, Completion):
            assert phase == "completing"
            assert turn.claim(end) is False
            code, status = "cancelled", 499
        else:
            code, status = end.code, Failure(end.code, "").status
    assert (code, status) == (
        ("server_shutdown", 503) if cause == "shutdown" and phase != "completing" else ("cancelled", 499)
    )
    turn.close()
    assert (kept.history, kept.rng, kept.bytes, kept.turns) == before
    bench.idle()
    untouched, other = prepared_bench()
    assert next_text(bench, session) == next_text(untouched, other)


@pytest.mark.parametrize("cause", CAUSES)
def test_after_the_claim_the_turn_stays_committed(cause: str):
    bench, session = prepared_bench()
    turn = reach(bench, session, "completing")
    end = bench.read(turn).end
    assert isinstance(end, Completion)
    assert turn.claim(end)
    if cause == "api":
        for _ in range(2):
            with pytest.raises(Failure) as refused:
                bench.service.cancel(turn.id, "")
            assert (refused.value.code, refused.value.status) == ("already_completed", 409)
    else:
        turn.cancel(cause)
    turn.close()
    assert bench.service.show_session(session, "").turns == 2
    assert bench.core.sessions.get(session, "").history[-1] == end.message
    bench.idle()


def test_a_claim_succeeds_once():
    bench, session = prepared_bench()
    turn = reach(bench, session, "completing")
    end = bench.read(turn).end
    assert [turn.claim(end), turn.claim(end)] == [True, False]
    turn.close()
    assert bench.service.show_session(session, "").turns == 2
    bench.idle()


def test_a_queued_turn_that_is_cancelled_generates_nothing():
    bench, session = prepared_bench()
    turn = reach(bench, session, "queued")
    fed = bench.engine.sequences
    bench.service.cancel(turn.id, "")
    reading = bench.read(turn)
    assert isinstance(reading.end, Failed)
    assert (reading.code, reading.text, turn.record.output_tokens) == ("cancelled", "", 0)
    assert bench.engine.sequences == fed
    assert [view.phase for view in bench.service.list_requests("") if view.id == turn.id] == ["cancelled"]


def test_cancelling_an_unknown_id_says_so():
    bench, _ = prepared_bench()
    for unknown in ("nobody", "0.0123456789abcdef." + "0" * 48, bench.service.identity.new_id()):
        with pytest.raises(Failure) as refused:
            bench.service.cancel(unknown, "")
        assert (refused.value.code, refused.value.status) == ("not_found", 404)


def test_another_key_cannot_cancel():
    bench = Bench()
    turn = bench.start(key="alice", id="mine")
    with pytest.raises(Failure) as refused:
        bench.service.cancel("mine", "bob")
    assert refused.value.code == "not_found"
    assert turn.record.phase == "queued"


def test_an_id_is_taken_until_the_final_output_was_written():
    bench = Bench()
    turn = bench.start(id="one")
    for _ in range(2):
        with pytest.raises(Failure) as refused:
            bench.begin(id="one")
        assert refused.value.code == "request_id_in_use"
        bench.run()
    turn.claim(bench.read(turn).end)
    with pytest.raises(Failure):
        bench.begin(id="one")
    turn.close()
    bench.finish(bench.start(id="one"))
    bench.idle()


def test_a_prefill_that_is_cancelled_stops_at_its_next_chunk():
    bench = Bench(chunk=64)
    fed = []
    prefill = bench.engine.prefill
    bench.engine.prefill = lambda seq, rows: (fed.append(len(rows)), prefill(seq, rows))
    turn = bench.start(text="z" * 2000, max_tokens=5)
    bench.steps(3)
    turn.cancel("disconnect")
    bench.run()
    assert fed == [64, 64, 64]
    turn.close()
    bench.idle()


def test_the_running_step_ends_before_its_state_is_reused():
    bench = Bench(slots=1)
    turn = bench.start(text="a", max_tokens=50)
    bench.steps(3)
    inside = []
    step = bench.engine.step

    def cancelled_inside(seq, *rest):
        turn.cancel("api")
        inside.append((seq.released, bench.engine.free_slots(), bench.core.ledger.total > 0))
        return step(seq, *rest)

    bench.engine.step = cancelled_inside
    bench.steps(1)
    assert inside == [(False, 0, True)]
    assert bench.engine.sequences == 0
    turn.close()
    bench.idle()


def test_draws_of_a_cancelled_turn_are_not_spent():
    bench, session = prepared_bench()
    kept = bench.core.sessions.get(session, "")
    assert kept.rng == RngState(7, 5)
    turn = reach(bench, session, "decode")
    assert turn.record.output_tokens > 0
    turn.cancel("api")
    turn.close()
    bench.run()
    assert kept.rng == RngState(7, 5)
