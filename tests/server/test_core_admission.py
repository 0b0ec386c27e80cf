"""Who may start: byte reservations, first come first served, a full queue, and an engine without memory."""

import pytest
from carousel_server.engine.protocol import EngineError
from carousel_server.failure import Failure
from carousel_server.limits import EngineSettings, Limits
from carousel_server.output import EVENT_BYTES
from carousel_server.turn import Completion, Progress

from tests.server.core_kit import Bench, prepare


def test_a_request_reserves_its_growth_and_gives_everything_back():
    bench = Bench()
    turn = bench.start(text="x" * 100, max_tokens=50)
    assert bench.service.state().reserved_bytes == 0
    bench.steps(1)
    info, capacity = bench.engine.info, turn.record.prepared.capacity_tokens
    held = bench.core.ledger.get(turn.record.number)
    assert held.checkpoint == info.fixed_state_bytes + capacity * info.token_state_bytes
    assert held.response == 2 * 4 * 2**20 + 2**20
    assert bench.service.list_requests("")[0].reserved_bytes == held.total
    bench.finish(turn)
    assert bench.service.state().reserved_bytes == 0
    bench.idle()


def test_half_the_context_halves_the_growth_part_and_touches_no_slot():
    def growth(context: int | None) -> int:
        bench = Bench(limits=Limits(max_output_tokens=8192))
        view = bench.service.create_session("", bench.begin().settings, None, (), context)
        turn = bench.begin(view.id, text="hello")
        room = turn.context_tokens - len(prepare(turn).prompt_tokens)
        bench.submit(turn, max_tokens=room)
        bench.steps(1)
        assert bench.engine.info.slots == 4
        return bench.core.ledger.get(turn.record.number).checkpoint - bench.engine.info.fixed_state_bytes

    assert growth(4096) * 2 == growth(None)


def test_a_larger_context_than_the_servers_or_the_sessions_is_refused():
    bench = Bench()
    with pytest.raises(Failure, match="8193"):
        bench.service.create_session("", bench.begin().settings, None, (), 8193)
    assert bench.begin().context_tokens == 8192


def test_what_fits_together_runs_together_and_the_rest_waits_in_order():
    one = 4096 + 4 * 600
    bench = Bench(limits=Limits(checkpoint_bytes=2 * one + 100))
    turns = [bench.start(text=f"{n}" * 500, max_tokens=60) for n in range(4)]
    bench.steps(1)
    assert [turn.record.phase for turn in turns] == ["prefill", "prefill", "queued", "queued"]
    assert [view.queue_position for view in bench.service.list_requests("")] == [None, None, 1, 2]
    assert all(isinstance(bench.finish(turn).end, Completion) for turn in turns)
    bench.idle()


def test_a_small_request_does_not_pass_a_large_one_that_waits():
    bench = Bench(limits=Limits(checkpoint_bytes=16_000))
    running = bench.start(text="r" * 500, max_tokens=200)
    bench.steps(1)
    large = bench.start(text="l" * 2000, max_tokens=20)
    small = bench.start(text="s", max_tokens=2)
    bench.steps(50)
    assert [large.record.phase, small.record.phase] == ["queued", "queued"]
    assert isinstance(bench.finish(running).end, Completion)
    assert isinstance(bench.finish(large).end, Completion)
    bench.finish(small)


def test_what_can_never_fit_is_refused_with_what_would():
    bench = Bench(limits=Limits(checkpoint_bytes=8192))
    with pytest.raises(Failure) as refused:
        bench.start(text="x" * 2000)
    assert (refused.value.code, refused.value.status) == ("limits_exceeded", 400)
    assert "at most 1024 tokens" in refused.value.message
    bench.idle()


def test_a_full_queue_is_429_and_frees_the_session():
    bench = Bench(limits=Limits(active_requests=1, queued_requests=1))
    session = bench.session()
    first = bench.start(max_tokens=20)
    bench.steps(1)
    second = bench.start(max_tokens=3)
    with pytest.raises(Failure) as refused:
        bench.start(session)
    assert (refused.value.code, refused.value.status, refused.value.retry_after) == ("queue_full", 429, 1.0)
    assert not bench.service.show_session(session, "").in_flight
    bench.finish(first)
    bench.finish(second)
    assert isinstance(bench.chat(session).end, Completion)
    bench.idle()


def test_without_a_queue_as_many_as_are_active_are_taken():
    bench = Bench(limits=Limits(active_requests=2, queued_requests=0))
    turns = [bench.start(text=str(n)) for n in range(2)]
    with pytest.raises(Failure):
        bench.start(text="third")
    assert all(isinstance(bench.finish(turn).end, Completion) for turn in turns)


def test_a_stream_that_waits_is_told_its_place():
    bench = Bench(limits=Limits(active_requests=1))
    first = bench.start(max_tokens=5)
    bench.steps(1)
    waiting = [bench.start(text=str(n), max_tokens=2) for n in range(2)]
    assert bench.read(waiting[1]).events == [Progress("queued", 2, 2)]
    bench.finish(first)
    assert Progress("queued", 1, 1) not in bench.read(waiting[0]).events
    for turn in waiting:
        turn.cancel("api")
        turn.close()
    bench.idle()


def out_of_memory(bench: Bench, times: int) -> None:
    create, left = bench.engine.create, [times]

    def failing(capacity):
        if left[0]:
            left[0] -= 1
            raise EngineError("out of memory")
        return create(capacity)

    bench.engine.create = failing


def test_without_memory_a_request_waits_until_another_ends():
    bench = Bench()
    running = bench.start(text="a", max_tokens=30)
    bench.steps(3)
    out_of_memory(bench, 1)
    late = bench.start(text="b", max_tokens=3)
    bench.steps(10)
    assert late.record.phase == "queued"
    assert isinstance(bench.finish(running).end, Completion)
    assert isinstance(bench.finish(late).end, Completion)
    bench.idle()


def test_without_memory_and_with_nobody_to_wait_for_it_is_503():
    bench = Bench()
    out_of_memory(bench, 1)
    failed = bench.chat(text="a")
    assert failed.code == "out_of_memory"
    assert Failure(failed.code, "").status == 503
    assert isinstance(bench.chat(text="b").end, Completion)
    bench.idle()


def test_a_slow_reader_is_cancelled_and_holds_up_nobody():
    bench = Bench(settings=EngineSettings(context_tokens=8192, output_queue_bytes=4096))
    session = bench.session()
    slow, quick = bench.start(session, text="slow", max_tokens=200), bench.start(text="quick", max_tokens=30)
    bench.run()
    reading = bench.read(slow)
    assert (reading.code, reading.end.details, reading.text) == ("cancelled", {"cause": "queue_full"}, "")
    assert len(bench.read(quick).text) == 30
    slow.close()
    quick.close()
    assert bench.service.show_session(session, "").turns == 0
    bench.idle()


def test_a_json_reply_fills_no_queue():
    bench = Bench(settings=EngineSettings(context_tokens=8192, output_queue_bytes=4096))
    turn = bench.start(text="json", stream=False, max_tokens=200)
    bench.run()
    assert turn.record.output.bytes <= EVENT_BYTES
    assert len(bench.finish(turn).text) == 200
    bench.idle()


def test_replies_still_being_written_are_charged_for_what_they_hold():
    bench = Bench()
    turn = bench.start(text="x", max_tokens=50)
    bench.run()
    held = bench.core.ledger.get(turn.record.number)
    assert (held.checkpoint, held.sampler) == (0, 0)
    assert 0 < held.response < 20_000
    turn.close()
    assert bench.core.ledger.total == 0
    bench.idle()
