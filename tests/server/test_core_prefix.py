"""Reuse of checkpoints: the same text as without, the longest exact prefix, and nothing of another request."""

import pytest
from carousel_server.limits import Limits, PrefixCacheLimits
from carousel_server.turn import Completion

from tests.server.core_kit import Bench

OFF = Limits(prefix_cache=PrefixCacheLimits(count=0))


def conversation(bench: Bench, **settings) -> list[str]:
    session = bench.session(seed=5)
    return [bench.chat(session, text=f"turn {n} " + "x" * 150, max_tokens=12, **settings).text for n in range(5)]


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}], ids=["greedy", "sampled"])
def test_a_conversation_is_the_same_with_and_without_the_cache(drafts, settings):
    cached, cold = Bench(drafts=drafts), Bench(limits=OFF, drafts=drafts)
    assert conversation(cached, **settings) == conversation(cold, **settings)
    assert cached.core.stats.counts[("tokens", "cached")] > 0
    assert cold.core.stats.counts[("tokens", "cached")] == 0


def test_the_turn_that_just_finished_is_reused_by_the_next():
    bench = Bench()
    session = bench.session()
    before = 0
    for n in range(4):
        reading = bench.chat(session, text=f"turn {n}", max_tokens=10)
        usage = reading.end.usage
        assert 0 <= usage.cached_tokens <= usage.prompt_tokens
        assert usage.cached_tokens == before
        before = usage.prompt_tokens + usage.completion_tokens - 1


def test_prefill_stops_at_the_boundaries_whether_the_cache_is_on_or_off():
    def chunks(limits: Limits) -> list[int]:
        bench, fed = Bench(limits=limits, chunk=256), []
        prefill = bench.engine.prefill
        bench.engine.prefill = lambda seq, rows: (fed.append(len(rows)), prefill(seq, rows))
        bench.chat(text="y" * 500, boundaries=(100, 300))
        return fed

    # [user] + 500 + [assistant] = 517 tokens: to 100, to 300, to 512 (a multiple of 64), to the end.
    assert chunks(Limits()) == chunks(OFF) == [100, 200, 212, 5]


def test_an_exact_hit_prefills_nothing_and_draws_for_itself():
    bench = Bench()
    first = bench.start(text="same prompt", max_tokens=8, temperature=1.0, seed=1)
    whole = len(first.record.prepared.prompt_tokens)
    bench.run()
    first.close()
    # An entry of exactly the prompt, as the end of an earlier turn leaves one.
    seq = bench.engine.create(whole)
    bench.engine.prefill(seq, first.record.prepared.prompt_tokens)
    bench.core.cache.insert(bench.engine.snapshot(seq), bench.clock())
    bench.engine.release(seq)
    fed = []
    prefill = bench.engine.prefill
    bench.engine.prefill = lambda seq, rows: (fed.append(len(rows)), prefill(seq, rows))
    hits = [bench.chat(text="same prompt", max_tokens=8, temperature=1.0, seed=seed) for seed in (1, 2)]
    assert fed == []
    assert [hit.end.usage.cached_tokens for hit in hits] == [whole, whole]
    cold = Bench(limits=OFF)
    fresh = [cold.chat(text="same prompt", max_tokens=8, temperature=1.0, seed=seed) for seed in (1, 2)]
    assert [hit.text for hit in hits] == [one.text for one in fresh]
    assert hits[0].text != hits[1].text


def test_an_entry_that_differs_in_its_last_token_is_not_used():
    bench = Bench()
    bench.chat(text="abcdefgh", boundaries=(10,))
    other = bench.chat(text="abcXefgh", boundaries=(10,))
    assert other.end.usage.cached_tokens == 0


def test_the_longest_entry_wins():
    bench = Bench()
    bench.chat(text="abcdefghij", boundaries=(8, 12))
    again = bench.chat(text="abcdefghij", boundaries=(8, 12))
    assert again.end.usage.cached_tokens == 12


def test_a_rendering_that_left_the_checkpoint_is_counted():
    bench = Bench()
    session = bench.session()
    bench.chat(session)
    kept = bench.core.sessions.get(session, "")
    length, _ = kept.checkpoint_mark
    kept.checkpoint_mark = (length, 12345)
    assert isinstance(bench.chat(session, text="next").end, Completion)
    assert bench.core.stats.counts[("prefix_mismatches",)] == 1


def test_a_cancelled_turn_leaves_no_end_of_turn_checkpoint():
    bench = Bench()
    turn = bench.start(text="a" * 100, max_tokens=50)
    bench.steps(5)
    turn.cancel("api")
    bench.run()
    turn.close()
    assert len(bench.core.cache) == 0


def test_a_verified_step_that_ran_past_the_end_is_not_kept():
    bench = Bench(drafts=3)
    session = bench.session()
    bench.chat(session, max_tokens=7)
    kept = bench.core.sessions.get(session, "")
    for entry in bench.core.cache:
        text = bytes(entry.tokens).decode()
        assert ("[user]hello[assistant]" + kept.history[-1].content).startswith(text)


def test_an_engine_that_cannot_take_a_snapshot_serves_on():
    from carousel_server.engine.protocol import EngineError

    bench = Bench()

    def failing(seq):
        raise EngineError("no host memory")

    bench.engine.snapshot = failing
    session = bench.session()
    assert isinstance(bench.chat(session).end, Completion)
    assert isinstance(bench.chat(session, text="b").end, Completion)
    assert (len(bench.core.cache), bench.core.cache.bytes) == (0, 0)
    bench.idle()
