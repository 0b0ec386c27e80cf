"""Between worker and writer: order, bytes, the end, wake-ups; and the thread: loading, a lost device, idle checks."""

import asyncio
import threading
import time

import pytest
from carousel_server.build import build_service
from carousel_server.engine.byte_vocabulary import ByteVocabulary
from carousel_server.engine.protocol import EngineError
from carousel_server.engine.scripted import ScriptedEngine
from carousel_server.engine.uniform import UniformEngine
from carousel_server.integrity import problems, sums
from carousel_server.limits import EngineSettings, Limits
from carousel_server.memory_plan import plan
from carousel_server.output import EVENT_BYTES, OutputQueue, Waker
from carousel_server.presets import PRESETS
from carousel_server.turn import Completion, Failed, Progress, TextDelta

from tests.server.core_kit import Bench, prepare, request

GONE = Failed("cancelled", "gone")


def queue(limit: int = 10_000) -> OutputQueue:
    return OutputQueue(limit, Waker())


def test_events_come_in_order_and_the_end_is_the_end():
    found = queue()
    found.put([TextDelta("a")])
    found.put([TextDelta("b"), TextDelta("c")])
    assert found.end(GONE)
    assert found.put([TextDelta("late")])
    assert not found.end(Failed("cancelled", "again"))
    assert found.take() == [TextDelta("a"), TextDelta("b"), TextDelta("c"), GONE]
    assert found.take() == []


def test_what_does_not_fit_is_not_put_at_all():
    found = queue(limit=2 * EVENT_BYTES + 3)
    assert found.put([TextDelta("a")])
    assert not found.put([TextDelta("b"), TextDelta("c")])
    assert found.take() == [TextDelta("a")]
    assert found.put([TextDelta("b"), TextDelta("c")])
    assert found.bytes == 2 * EVENT_BYTES + 2


def test_the_end_always_fits_and_may_drop_what_waits():
    found = queue(limit=EVENT_BYTES + 1)
    found.put([TextDelta("a")])
    found.end(GONE, drop=True)
    assert (found.take(), found.bytes) == ([GONE], 0)


def test_only_the_latest_progress_waits():
    found = queue()
    for done in range(5):
        found.put([Progress("prefill", done, 5)])
    assert found.take() == [Progress("prefill", 4, 5)]


def test_one_wake_up_serves_every_writer_that_got_something():
    async def run() -> tuple[int, list[list[str]]]:
        waker, calls = Waker(), []
        loop = asyncio.get_running_loop()
        schedule = loop.call_soon_threadsafe

        def counted(*arguments):
            calls.append(1)
            return schedule(*arguments)

        loop.call_soon_threadsafe = counted
        waker.bind(loop)
        queues = [OutputQueue(10_000, waker) for _ in range(8)]

        async def read(one: OutputQueue) -> list[str]:
            found: list[str] = []
            while GONE not in (events := await one.events()):
                found += [event.text for event in events]
            return found + [event.text for event in events[:-1]]

        readers = [asyncio.create_task(read(one)) for one in queues]
        await asyncio.sleep(0)

        def work() -> None:
            for one in queues:
                one.put([TextDelta("x")])
                one.end(GONE)
            waker.flush()

        thread = threading.Thread(target=work)
        thread.start()
        texts = await asyncio.gather(*readers)
        thread.join()
        del loop.call_soon_threadsafe
        return len(calls), texts

    calls, texts = asyncio.run(run())
    assert texts == [["x"]] * 8
    assert calls == 1


def test_waiting_in_vain_ends_with_nothing_and_an_old_wake_up_does_not_end_it():
    async def run() -> tuple[list, list, float]:
        found = queue()
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(0.01, found.wake)  # for something that was taken already
        nothing = await found.events(0.05)
        waited = loop.time() - began
        loop.call_later(0.01, lambda: (found.put([TextDelta("a")]), found.wake()))
        return nothing, await found.events(30), waited

    nothing, something, waited = asyncio.run(run())
    assert (nothing, something) == ([], [TextDelta("a")])
    assert waited >= 0.04


def service(engine, **options):
    vocabulary = ByteVocabulary()
    planned = plan(PRESETS["tiny"], Limits(), EngineSettings(), device="cpu")
    load = engine if callable(engine) else lambda: engine
    return build_service(load, vocabulary, plan=planned, replan=lambda limits: planned, **options)


def wait(look, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_engine_is_loaded_and_used_on_one_thread():
    threads = set()

    class Watched(UniformEngine):
        def __init__(self) -> None:
            super().__init__(ByteVocabulary())
            threads.add(threading.get_ident())

        def step(self, *arguments):
            threads.add(threading.get_ident())
            return super().step(*arguments)

    found = service(Watched)
    turn = found.begin(request("hello"))
    turn.submit(prepare(turn, max_tokens=5))
    wait(lambda: turn.record.phase == "completing")
    turn.close()
    found.stop()
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_what_loading_raises_reaches_the_builder():
    def load():
        raise FileNotFoundError("no weights")

    with pytest.raises(FileNotFoundError, match="no weights"):
        service(load)


def test_a_lost_device_fails_everyone_and_is_told_once():
    class Lost(UniformEngine):
        def step(self, *arguments):
            raise EngineError("CUDA error: unspecified launch failure", fatal=True)

    told = []
    found = service(Lost(ByteVocabulary()), on_fatal=told.append)
    turns = [found.begin(request(str(n))) for n in range(3)]
    for turn in turns:
        turn.submit(prepare(turn, max_tokens=5))
    wait(lambda: told)
    wait(lambda: all(turn.record.phase == "failed" for turn in turns))
    assert [turn.record.output.take()[-1].code for turn in turns] == ["generation_failed"] * 3
    assert [str(error) for error in told] == ["CUDA error: unspecified launch failure"]
    assert found.state().phase == "failed"
    for turn in turns:
        turn.close()
    assert found.state().reserved_bytes == 0


def test_an_idle_server_checks_itself_and_counts_what_it_finds(caplog):
    found = service(UniformEngine(ByteVocabulary()))

    def chat() -> None:
        turn = found.begin(request("hello"))
        turn.submit(prepare(turn, max_tokens=3))
        wait(lambda: turn.record.phase == "completing")
        turn.close()

    chat()
    wait(lambda: found._thread._checked)
    assert b"carousel_integrity_errors_total 0.0" in found.metrics()
    found.core.sessions._bytes += 7
    chat()
    wait(lambda: "session bytes is 7, its parts sum to 0" in caplog.text)
    assert found.core.stats.counts[("integrity_errors",)] == 1
    found.stop()


def test_the_check_names_everything_that_is_held():
    bench = Bench()
    session = bench.session()
    turn = bench.start(session, max_tokens=20)
    bench.steps(2)
    with bench.core.lock:
        found = problems(bench.core, bench.engine)
        assert sums(bench.core) == []
    for words in ("requests registered is 1", "requests running is 1", "reserved bytes is", "pinned sessions is 1"):
        assert any(words in problem for problem in found), words
    assert any("free slots is 3, expected 4" in problem for problem in found)
    bench.finish(turn)
    bench.idle()


def test_a_drain_refuses_new_work_and_lets_live_sessions_go_on():
    from carousel_server.admin_state import DrainRequest
    from carousel_server.failure import Failure

    bench = Bench()
    session = bench.session()
    bench.service.drain(DrainRequest(reason="rollout", remaining_seconds=100, idle_grace_seconds=30))
    for refused in (bench.session, bench.begin):
        with pytest.raises(Failure) as failure:
            refused()
        assert (failure.value.code, failure.value.retry_after) == ("draining", 1.0)
    turn = bench.start(session)
    assert not bench.service.close_drain(force=False)
    assert isinstance(bench.finish(turn).end, Completion)
    assert bench.service.session_seconds() == 30
    assert not bench.service.close_drain(force=False)
    bench.clock.advance(30)
    assert bench.service.close_drain(force=False)
    with pytest.raises(Failure):
        bench.begin(session)
    assert bench.service.state().phase == "closed"
    bench.service.undo_drain()
    bench.chat(session)
    assert bench.service.session_seconds() is None


def test_the_scripted_engine_says_what_the_request_asked_for():
    vocabulary = ByteVocabulary()
    slept: list[float] = []
    engine = ScriptedEngine(vocabulary, sleep=slept.append)

    def reply(message: str, steps: int) -> bytes:
        text = f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
        tokens = vocabulary.encode_template(text)
        seq = engine.create(len(tokens) + 50)
        engine.prefill(seq, tokens)
        from carousel_server.engine.protocol import SamplerParams

        found, params = [engine.select(seq, SamplerParams()).token], SamplerParams()
        while found[-1] not in vocabulary.stop_tokens and len(found) < steps:
            found.append(engine.step(seq, found[-1], params, 0)[0].token)
        engine.release(seq)
        return b"|".join(vocabulary.token_bytes(token) for token in found)

    assert reply('{"pieces": ["a", {"hex": "e282"}, "bc"]}', 9) == b"a|\xe2\x82|bc|"
    assert reply("hello", 9) == b"ok|"
    assert reply('{"pieces": ["a", "b"], "then": "length"}', 5) == b"a|b|b|b|b"
    assert reply('{"pieces": ["a"], "then": "stall"}', 4) == b"a|||"
    with pytest.raises(EngineError, match="the script asked"):
        reply('{"pieces": ["a"], "then": "error"}', 4)
    slept.clear()
    reply('{"prefill_ms": 40, "pieces": ["a"], "delay_ms": 20}', 9)
    assert slept == [0.04, 0.02, 0.02]
