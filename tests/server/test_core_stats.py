"""What is counted: every outcome once, tokens, seconds, look-ups, and the names that /metrics promises."""

import re

from carousel_server.stats import COUNTERS, GAUGES

from tests.server.core_kit import Bench


def value(bench: Bench, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", bench.service.metrics().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_every_request_ends_in_one_outcome():
    bench = Bench()
    session = bench.session()
    bench.chat(session)
    cancelled = bench.start(max_tokens=50)
    bench.steps(2)
    cancelled.cancel("disconnect")
    bench.run()
    cancelled.close()
    refused = bench.begin()
    refused.close()
    broken = bench.start()
    bench.steps(1)
    bench.engine.step = lambda *arguments: 1 / 0
    bench.run()
    broken.close()
    outcomes = {name: value(bench, f'carousel_requests_total{{outcome="{name}"}}') for name in OUTCOMES}
    assert outcomes == dict.fromkeys(OUTCOMES, 1.0)
    assert value(bench, 'carousel_requests_cancelled_total{cause="disconnect"}') == 1
    assert value(bench, 'carousel_requests_rejected_total{code="invalid"}') == 1
    bench.idle()


OUTCOMES = ("completed", "cancelled", "rejected", "failed")


def test_tokens_are_those_of_the_usage():
    bench = Bench()
    session = bench.session()
    usages = [bench.chat(session, text=f"turn {n}").end.usage for n in range(3)]
    for kind, total in (
        ("prompt", sum(u.prompt_tokens for u in usages)),
        ("cached", sum(u.cached_tokens for u in usages)),
        ("output", sum(u.completion_tokens for u in usages)),
    ):
        assert value(bench, f'carousel_tokens_total{{kind="{kind}"}}') == total > 0
    assert value(bench, 'carousel_prefix_cache_lookups_total{result="hit"}') == 2


def test_seconds_go_where_they_were_spent():
    bench = Bench(slots=1)

    def slow(method: str, seconds: float) -> None:
        original = getattr(bench.engine, method)
        setattr(bench.engine, method, lambda *a: (bench.clock.advance(seconds), original(*a))[1])

    for method, seconds in (("prefill", 2.0), ("step", 1.0), ("suspend", 0.25), ("resume", 0.25)):
        slow(method, seconds)
    turns = [bench.start(text=str(n), max_tokens=3) for n in range(2)]
    bench.run()
    for turn in turns:
        turn.close()
    assert value(bench, 'carousel_seconds_total{kind="prefill"}') == 4.0
    assert value(bench, 'carousel_seconds_total{kind="decode"}') == 4.0
    saves = value(bench, 'carousel_switches_total{kind="save"}')
    assert saves > 0
    assert value(bench, 'carousel_seconds_total{kind="switching"}') == 0.5 * saves


def test_a_request_shows_its_phase_tokens_and_bytes():
    bench = Bench()
    session = bench.session()
    turn = bench.start(session, max_tokens=20)
    bench.clock.advance(3)
    bench.steps(3)
    [view] = bench.service.list_requests("")
    assert (view.id, view.session_id, view.phase) == (turn.id, session, "decode")
    assert (view.prompt_tokens, view.output_tokens, view.age_seconds) == (22, 3, 3)
    assert view.reserved_bytes == bench.service.state().reserved_bytes > 0
    assert value(bench, 'carousel_requests_now{phase="decode"}') == 1
    bench.finish(turn)
    assert bench.service.list_requests("") == []


def test_drafts_are_counted_by_the_engine():
    bench = Bench(drafts=2)
    bench.chat(max_tokens=9)
    proposed = value(bench, 'carousel_drafts_total{result="proposed"}')
    assert proposed >= value(bench, 'carousel_drafts_total{result="accepted"}') > 0


def test_the_names_are_stable_and_counters_end_in_total():
    bench = Bench()
    bench.chat(bench.session())
    shown = set(re.findall(r"^# TYPE (\S+) (\S+)$", bench.service.metrics().decode(), re.MULTILINE))
    assert shown == {(f"{name}_total", "counter") for name in COUNTERS} | {(name, "gauge") for name in GAUGES}
