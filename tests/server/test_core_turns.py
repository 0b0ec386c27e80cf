"""Turns through the core with a test engine: text, commit, order, and that nothing is left behind."""

from carousel_server.engine.protocol import EngineError
from carousel_server.turn import Completion, Failed

from tests.server.core_kit import Bench


def test_a_turn_gives_its_text_and_commits_the_session():
    bench = Bench()
    session = bench.session()
    first = bench.chat(session, max_tokens=5)
    assert isinstance(first.end, Completion)
    assert first.end.finish == "length"
    assert len(first.text) == 5
    view = bench.service.show_session(session, "")
    assert (view.turns, view.in_flight) == (1, False)
    turn = bench.begin(session)
    assert [m.content for m in turn.history] == ["hello", first.text]
    turn.close()
    bench.idle()


def test_requests_take_turns_one_chunk_or_step_each():
    bench = Bench(slots=4)
    turns = [bench.start(text=f"request {n}", max_tokens=6) for n in range(3)]
    bench.run()
    texts = [bench.read(turn).text for turn in turns]
    assert all(len(text) == 6 for text in texts)
    assert len(set(texts)) == 3
    for turn in turns:
        turn.close()
    bench.idle()


def test_one_slot_gives_the_same_text_as_four():
    def texts(slots: int) -> list[str]:
        bench = Bench(slots=slots)
        turns = [bench.start(text=f"request {n}", max_tokens=20, temperature=1.0, seed=n) for n in range(4)]
        bench.run()
        found = [bench.read(turn).text for turn in turns]
        for turn in turns:
            turn.close()
        bench.idle()
        assert (bench.engine.stats.saves > 0) == (slots == 1)
        return found

    assert texts(1) == texts(4)


def test_a_failing_reply_fails_its_turn_alone():
    bench = Bench()
    broken = bench.start(text="a", max_tokens=50)
    other = bench.start(text="b", max_tokens=50)
    bench.steps(4)
    broken_job = next(job for job in bench.worker._jobs if job.record is broken.record)
    broken_job.reply.feed = lambda selected: 1 / 0
    bench.run()
    assert isinstance(bench.read(broken).end, Failed)
    assert len(bench.read(other).text) == 50
    broken.close()
    other.close()
    bench.idle()


def test_a_request_that_cannot_begin_fails_alone():
    bench = Bench()
    broken = bench.start(text="a", logit_bias={10**9: 1.0})
    other = bench.start(text="b")
    bench.run()
    assert bench.read(broken).code == "generation_failed"
    assert isinstance(bench.finish(other).end, Completion)
    broken.close()
    bench.idle()


def test_a_sequence_that_cannot_be_saved_fails_its_own_request():
    bench = Bench(slots=1)
    first = bench.start(text="a", max_tokens=20)
    bench.steps(2)
    second = bench.start(text="b", max_tokens=5)
    bench.engine.suspend = cannot_save
    bench.run()
    assert bench.read(first).code == "generation_failed"
    assert len(bench.read(second).text) == 5
    first.close()
    second.close()
    bench.idle()


def cannot_save(seq):
    raise EngineError("no host memory")
