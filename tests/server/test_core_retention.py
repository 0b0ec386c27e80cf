"""What is kept and what goes: sessions and checkpoints, by count, bytes and idle time; pins; limits pushed."""

import pytest
from carousel_server.failure import Failure
from carousel_server.limits import Limits, PrefixCacheLimits, SessionLimits
from carousel_server.turn import Completion, Failed

from tests.server.core_kit import Bench


def limits(count=3, session_bytes=None, idle=100.0, entries=4, entry_bytes=None, entry_idle=100.0, **others) -> Limits:
    return Limits(
        sessions=SessionLimits(count=count, bytes=session_bytes, idle=idle),
        prefix_cache=PrefixCacheLimits(count=entries, bytes=entry_bytes, idle=entry_idle),
        **others,
    )


def push(bench: Bench, new: Limits) -> None:
    assert bench.service.set_limits(bench.service.limits_generation + 1, new)


def code(call, *arguments) -> tuple[str, int]:
    with pytest.raises(Failure) as refused:
        call(*arguments)
    return refused.value.code, refused.value.status


def test_the_least_recently_used_idle_session_makes_room():
    bench = Bench(limits=limits(count=2))
    first, second = bench.session(), bench.session()
    bench.chat(first)
    third = bench.session()
    assert code(bench.service.show_session, second, "") == ("session_expired", 410)
    assert {view.id for view in bench.service.list_sessions("")} == {first, third}


def test_a_session_in_a_turn_is_never_evicted():
    bench = Bench(limits=limits(count=2))
    oldest, other = bench.session(), bench.session()
    turn = bench.start(oldest)
    bench.session()
    assert bench.service.show_session(oldest, "").in_flight
    assert code(bench.service.show_session, other, "")[0] == "session_expired"
    bench.finish(turn)
    bench.idle()


def test_a_new_session_is_refused_when_every_other_is_in_a_turn():
    bench = Bench(limits=limits(count=2))
    turns = [bench.start(bench.session()) for _ in range(2)]
    with pytest.raises(Failure) as refused:
        bench.session()
    assert (refused.value.code, refused.value.status, refused.value.retry_after) == ("sessions_full", 429, 1.0)
    assert "2" in refused.value.message
    bench.finish(turns[0])
    bench.session()


def test_an_idle_session_goes_after_its_time_and_a_busy_one_stays():
    bench = Bench(limits=limits(idle=10))
    idle, busy = bench.session(), bench.session()
    turn = bench.start(busy)
    bench.clock.advance(10)
    bench.core.sweep(bench.clock())
    assert code(bench.service.show_session, idle, "") == ("session_expired", 410)
    assert bench.service.show_session(busy, "").in_flight
    bench.finish(turn)
    bench.clock.advance(9.9)
    bench.core.sweep(bench.clock())
    bench.service.show_session(busy, "")


def test_a_session_that_grows_evicts_idle_ones_and_then_fails_with_its_turn_intact():
    bench = Bench(limits=limits(count=10, session_bytes=6000))
    talking, bystander = bench.session(), bench.session()
    first = bench.chat(talking, text="a" * 3500, max_tokens=5)
    assert isinstance(first.end, Completion)
    assert code(bench.service.show_session, bystander, "")[0] == "session_expired"
    kept = bench.core.sessions.get(talking, "")
    before = (kept.history, kept.rng, kept.bytes)
    second = bench.start(talking, text="b" * 300, max_tokens=900)
    assert bench.finish(second).code == "session_full"
    assert (kept.history, kept.rng, kept.bytes) == before
    assert bench.core.sessions.bytes == kept.bytes
    bench.idle()
    assert isinstance(bench.chat(talking, text="c", max_tokens=5).end, Completion)


def test_a_history_that_can_never_fit_is_refused_before_it_runs():
    bench = Bench(limits=limits(session_bytes=6000))
    session = bench.session()
    assert code(lambda: bench.start(session, text="a" * 6000)) == ("limits_exceeded", 400)
    assert bench.service.show_session(session, "").turns == 0
    assert code(bench.service.create_session, "", bench.begin().settings, "s" * 7000, (), None)[0] == "limits_exceeded"


def test_deleting_during_a_turn_is_refused_and_afterwards_done():
    bench = Bench()
    session = bench.session()
    turn = bench.start(session)
    assert code(bench.service.delete_session, session, "") == ("session_busy", 409)
    bench.finish(turn)
    bench.service.delete_session(session, "")
    assert code(bench.service.delete_session, session, "") == ("session_expired", 410)
    assert code(bench.begin, session) == ("session_expired", 410)


def test_a_session_has_one_turn_at_a_time():
    bench = Bench()
    session = bench.session()
    turn = bench.start(session)
    assert code(bench.begin, session) == ("session_busy", 409)
    bench.finish(turn)
    bench.chat(session)
    assert bench.service.show_session(session, "").turns == 2


def test_another_keys_session_does_not_exist():
    bench = Bench()
    mine = bench.session(key="alice")
    for call in (bench.service.show_session, bench.service.delete_session):
        assert code(call, mine, "bob") == ("not_found", 404)
    assert bench.service.list_sessions("bob") == []


def test_lowered_limits_evict_idle_sessions_and_leave_pinned_ones():
    bench = Bench(limits=limits(count=5))
    sessions = [bench.session() for _ in range(5)]
    turns = [bench.start(one) for one in sessions[:2]]
    push(bench, limits(count=1))
    assert [view.id for view in bench.service.list_sessions("")] == sessions[:2]
    for turn in turns:
        assert isinstance(bench.finish(turn).end, Completion)
    assert len(bench.service.list_sessions("")) == 1
    bench.idle()


def test_lowered_bytes_evict_the_least_recently_used_first():
    bench = Bench(limits=limits(count=5))
    sessions = [bench.session() for _ in range(3)]
    for one in sessions:
        bench.chat(one, text="x" * 500)
    size = bench.core.sessions.get(sessions[0], "").bytes
    push(bench, limits(count=5, session_bytes=2 * size + 10))
    assert [view.id for view in bench.service.list_sessions("")] == sessions[1:]


def test_an_older_generation_changes_nothing():
    bench = Bench()
    push(bench, limits(count=2))
    assert not bench.service.set_limits(0, limits(count=9))
    assert bench.service.state().limits.sessions.count == 2


def test_limits_that_the_machine_cannot_hold_change_nothing():
    bench = Bench()
    before = bench.service.state()
    fits = bench.service._replan
    bench.service._replan = lambda new: fits(new).__class__(**{**vars(fits(new)), "errors": ("host memory: too much",)})
    assert code(bench.service.set_limits, 5, limits(count=9)) == ("limits_exceeded", 400)
    after = bench.service.state()
    assert (after.limits, after.limits_generation) == (before.limits, before.limits_generation)


def test_lowered_active_requests_let_running_ones_finish():
    bench = Bench()
    turns = [bench.start(text=str(n), max_tokens=30) for n in range(4)]
    bench.steps(8)
    push(bench, Limits(active_requests=1))
    late = bench.start(text="late", max_tokens=3)
    bench.steps(20)
    assert late.record.phase == "queued"
    assert all(isinstance(bench.finish(turn).end, Completion) for turn in turns)
    assert isinstance(bench.finish(late).end, Completion)
    bench.idle()


def test_a_queued_request_that_new_limits_can_never_hold_is_told():
    bench = Bench(limits=Limits(active_requests=1))
    running = bench.start(max_tokens=20)
    bench.steps(2)
    waiting = bench.start(text="w" * 3000, max_tokens=20)
    push(bench, Limits(active_requests=1, checkpoint_bytes=8000))
    end = bench.read(waiting).end
    assert isinstance(end, Failed)
    assert end.code == "limits_exceeded"
    waiting.close()
    assert isinstance(bench.finish(running).end, Completion)
    bench.idle()


def test_checkpoints_go_by_count_and_idle_time_but_histories_stay():
    bench = Bench(limits=limits(entries=2, entry_idle=10, idle=1000))
    session = bench.session()
    for n in range(4):
        bench.chat(session, text=f"turn {n}")
    assert len(bench.core.cache) == 2
    hit = bench.chat(session, text="again")
    assert hit.end.usage.cached_tokens > 0
    bench.clock.advance(10)
    bench.core.sweep(bench.clock())
    assert (len(bench.core.cache), bench.core.cache.bytes) == (0, 0)
    cold = bench.chat(session, text="after eviction")
    assert isinstance(cold.end, Completion)
    assert cold.end.usage.cached_tokens == 0
    assert bench.service.show_session(session, "").turns == 6


def test_lowered_cache_limits_evict_at_once():
    bench = Bench(limits=limits(entries=4))
    session = bench.session()
    for n in range(4):
        bench.chat(session, text=f"turn {n}")
    assert len(bench.core.cache) == 4
    push(bench, limits(entries=1))
    assert len(bench.core.cache) == 1
    push(bench, limits(entries=0))
    assert (len(bench.core.cache), bench.core.cache.bytes) == (0, 0)
    assert isinstance(bench.chat(session, text="more").end, Completion)
    assert len(bench.core.cache) == 0


def test_a_checkpoint_that_is_being_adopted_survives_lowered_limits():
    bench = Bench()
    session = bench.session()
    bench.chat(session)
    adopt = bench.engine.adopt
    seen = []

    def pushed_inside(seq, snapshot):
        push(bench, limits(entries=0))
        seen.append(len(bench.core.cache))
        adopt(seq, snapshot)

    bench.engine.adopt = pushed_inside
    assert isinstance(bench.chat(session, text="next").end, Completion)
    assert seen == [1]
    assert len(bench.core.cache) == 0
    bench.idle()


def test_the_newest_use_is_that_of_any_session_and_zero_during_a_turn():
    bench = Bench()
    assert bench.service.state().sessions.newest_use_seconds is None
    session = bench.session()
    bench.clock.advance(7)
    assert bench.service.state().sessions.newest_use_seconds == 7
    turn = bench.start(session)
    assert bench.service.state().sessions.newest_use_seconds == 0
    bench.finish(turn)
    bench.clock.advance(2)
    assert bench.service.state().sessions.newest_use_seconds == 2
