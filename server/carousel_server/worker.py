"""The only caller of the engine: admits requests and gives each active one its turn, round-robin. Knows no socket.

`run_once` does one unit of work and returns; the thread around it is in worker_thread.py. A turn is one prefill chunk
or one decode step. With more active requests than slots, the sequence whose next turn is furthest away makes room.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from carousel_server.core import Core
from carousel_server.engine.protocol import Engine, EngineError, Selected, Sequence
from carousel_server.failure import Failure
from carousel_server.job import Job, ReplyMaker
from carousel_server.pace import Pace, chunk_end
from carousel_server.prefix_cache import Entry
from carousel_server.registry import Record
from carousel_server.sampling import Sampler
from carousel_server.turn import CallDelta, Completion, Event, Progress, TextDelta, Usage

log = logging.getLogger(__name__)

INTERNAL = Failure("generation_failed", "this turn failed inside the server; its log has the cause")


class Worker:
    """Turns. Everything here belongs to the thread that calls `run_once`."""

    def __init__(self, core: Core, engine: Engine, reply: ReplyMaker, pace: Pace, clock: Callable[[], float]) -> None:
        self._core = core
        self._engine = engine
        self._reply = reply
        self._pace = pace
        self._clock = clock
        self._jobs: deque[Job] = deque()  # the next turn is on the left

    @property
    def jobs(self) -> int:
        """Requests that hold a sequence or are about to."""
        return len(self._jobs)

    def run_once(self) -> bool:
        """Admit what fits and give one request its turn. False: there was nothing to do."""
        self._admit()
        if not self._jobs:
            return False
        job = self._jobs.popleft()
        try:
            done = job.record.cancelled or self._turn(job)
        except EngineError as error:
            if error.fatal:
                self._jobs.append(job)
                raise
            log.error("request %s failed in the engine: %s", job.record.id, error)
            self._fail(job, Failure("generation_failed", f"the engine failed in this turn: {error}"))
            done = True
        except Failure as failure:
            self._fail(job, failure)
            done = True
        except Exception:
            log.exception("request %s failed", job.record.id)
            self._fail(job, INTERNAL)
            done = True
        if done:
            self._release(job)
        elif job.record in self._core.working:
            self._jobs.append(job)
        self._core.waker.flush()
        return True

    def abandon(self, message: str) -> None:
        """The device is lost: every request that waits or runs fails."""
        with self._core.lock:
            for record in self._core.registry:
                self._core.fail(record, Failure("generation_failed", message))
        while self._jobs:
            job = self._jobs.popleft()
            with self._core.lock:
                self._core.let_go(job.record)
        self._core.waker.flush()

    def _admit(self) -> None:
        if not self._core.queue:
            return
        while True:
            with self._core.lock:
                record = self._core.admit(self._clock())
                room = self._core.limits.response_bytes
            if record is None:
                return
            try:
                self._jobs.append(self._job(record, room))
            except Exception:
                log.exception("request %s cannot begin", record.id)
                with self._core.lock:
                    self._core.fail(record, INTERNAL)
                    self._core.let_go(record)

    def _job(self, record: Record, room: int) -> Job:
        prepared, info = record.prepared, self._engine.info
        assert prepared is not None
        sampler = Sampler(prepared.request.settings, prepared.prompt_tokens, prepared.rng, info.vocab_size)
        most = info.max_drafts if sampler.plain_greedy and prepared.grammar is None else 0
        matcher = None if prepared.grammar is None else prepared.grammar.start()
        return Job(record, prepared, sampler, self._reply(prepared, room), most, matcher=matcher)

    def _turn(self, job: Job) -> bool:
        """One chunk or one step. True when the request has ended, one way or another."""
        if job.seq is None:
            if not self._start(job):
                return False
        elif not job.seq.live:
            self._free_slot(job)
            began = self._clock()
            self._engine.resume(job.seq)
            self._spend("switching", began)
        assert job.seq is not None
        if job.prefilling:
            self._prefill(job, job.seq)
        else:
            self._step(job, job.seq)
        if job.finish is None:
            return job.record.cancelled
        self._complete(job, job.seq)
        return True

    def _start(self, job: Job) -> bool:
        """A sequence, filled from the longest cached prefix. False: no memory now, the request waits again."""
        core, prompt = self._core, job.prepared.prompt_tokens
        self._free_slot(job)
        try:
            job.seq = self._engine.create(job.prepared.capacity_tokens)
        except EngineError as error:
            if error.fatal:
                raise
            with core.lock:
                if core.running > 1:
                    log.warning("request %s waits for memory: %s", job.record.id, error)
                    core.postpone(job.record, self._clock())
                else:
                    core.fail(job.record, Failure("out_of_memory", f"there is no memory for this request: {error}"))
                    core.let_go(job.record)
            return False
        with core.lock:
            entry = core.cache.find(prompt, self._clock())
            self._count_lookup(job, entry)
        if entry is not None:
            try:
                self._engine.adopt(job.seq, entry.snapshot)
                job.position = len(entry.tokens)
                job.record.cached_tokens = job.position
            finally:
                with core.lock:
                    core.cache.unpin(entry)
        return True

    def _prefill(self, job: Job, seq: Sequence) -> None:
        prompt, boundaries = job.prepared.prompt_tokens, job.prepared.boundaries
        if job.position < len(prompt):
            chunk = self._pace.chunk(alone=not self._jobs)
            end = chunk_end(job.position, len(prompt), chunk, boundaries)
            began = self._clock()
            self._engine.prefill(seq, prompt[job.position : end])
            self._pace.observe(end - job.position, self._spend("prefill", began))
            job.position = end
            if job.record.request.stream:
                self._put(job, [Progress("prefill", end, len(prompt))])
            if job.record.cancelled:
                return
            if end in boundaries:
                self._checkpoint(seq, prompt[:end])
        if job.position == len(prompt):
            with self._core.lock:
                self._core.registry.advance(job.record, "decode")
            selected = self._engine.select(seq, job.sampler.params(self._mask(job)))
            self._accept(job, [selected])

    def _step(self, job: Job, seq: Sequence) -> None:
        assert job.pending is not None
        room = job.prepared.max_new_tokens - len(job.output) - 1
        began = self._clock()
        selections = self._engine.step(seq, job.pending, job.sampler.params(self._mask(job)), min(job.drafts, room))
        self._spend("decode", began)
        if not job.record.cancelled:
            self._accept(job, selections)

    def _accept(self, job: Job, selections: list[Selected]) -> None:
        """Selections become output, up to the end of the reply."""
        stop = self._engine.info.stop_tokens
        events: list[TextDelta | CallDelta] = []
        for selected in selections:
            job.sampler.accept(selected.token)
            if job.matcher is not None:
                job.matcher.accept(selected.token)
            job.output.append(selected.token)
            job.pending = selected.token
            events += job.reply.feed(selected)
            job.finish = job.reply.finish
            if job.finish is None and selected.token in stop:
                job.finish = "stop"
            elif job.finish is None and len(job.output) >= job.prepared.max_new_tokens:
                job.finish = "length"
            if job.finish is not None:
                break
        job.record.output_tokens = len(job.output)
        job.record.raw_bytes = job.reply.raw_bytes
        self._put(job, events)

    def _complete(self, job: Job, seq: Sequence) -> None:
        """The reply is over: flush every stage, then show the end. The writer decides whether it counts."""
        record, core = job.record, self._core
        self._put(job, job.reply.close("length" if job.finish == "length" else "stop"))
        usage = Usage(len(job.prepared.prompt_tokens), len(job.output), record.cached_tokens)
        finish = job.reply.finish or job.finish
        assert finish is not None
        completion = Completion(job.reply.message, finish, usage, job.sampler.rng, job.reply.logprobs)
        fed = self._fed(job, seq)
        if fed is not None and not record.cancelled:
            self._checkpoint(seq, fed)
            with core.lock:
                known = fed in core.cache
            record.checkpoint_mark = (len(fed), hash(fed)) if known else None
        with core.lock:
            shown = core.complete(record, completion)
            if shown:
                core.stats.add("tokens", "prompt", by=usage.prompt_tokens)
                core.stats.add("tokens", "cached", by=usage.cached_tokens)
                core.stats.add("tokens", "output", by=usage.completion_tokens)

    def _fed(self, job: Job, seq: Sequence) -> tuple[int, ...] | None:
        """The rows of a sequence that ends with its reply; None if it holds rows beyond what was accepted."""
        tokens = (*job.prepared.prompt_tokens, *job.output)
        return tokens[: seq.length] if seq.length <= len(tokens) else None

    def _checkpoint(self, seq: Sequence, tokens: tuple[int, ...]) -> None:
        """Keep the state after these rows, if the cache has room for it."""
        core, info = self._core, self._engine.info
        size = info.fixed_state_bytes + len(tokens) * info.token_state_bytes + 4 * info.vocab_size
        with core.lock:
            wanted = core.cache.reserve(tokens, size, self._clock())
        self._bury()
        if not wanted:
            return
        snapshot = None
        try:
            snapshot = self._engine.snapshot(seq)
        except EngineError as error:
            if error.fatal:
                raise
            log.warning("no checkpoint of %d tokens: %s", len(tokens), error)
        finally:
            with core.lock:
                core.cache.insert(snapshot, self._clock())

    def _free_slot(self, job: Job) -> None:
        """Suspend the sequence whose turn is furthest away; one that cannot be saved fails and gives its slot up."""
        if self._engine.free_slots():
            return
        other = next((one for one in reversed(self._jobs) if one.seq is not None and one.seq.live), None)
        if other is None or other.seq is None or other is job:
            return
        began = self._clock()
        try:
            self._engine.suspend(other.seq)
        except EngineError as error:
            if error.fatal:
                raise
            log.error("request %s cannot be suspended: %s", other.record.id, error)
            self._fail(other, Failure("generation_failed", f"the engine failed in this turn: {error}"))
            self._jobs.remove(other)
            self._release(other)
        self._spend("switching", began)

    def _put(self, job: Job, events: Collection[Event]) -> None:
        """To the writer; a full queue cancels the request, it never makes the worker wait.

        A JSON reply is in its Completion, so no text of it waits in a queue: its writer learns that output has begun.
        """
        if not job.record.request.stream and events:
            events = () if job.begun else (TextDelta(""),)
            job.begun = True
        if not job.record.output.put(events):
            with self._core.lock:
                self._core.cancel(job.record, "queue_full")

    def _fail(self, job: Job, failure: Failure) -> None:
        with self._core.lock:
            self._core.fail(job.record, failure)

    def _release(self, job: Job) -> None:
        """After the last step has finished: the slot, the state and the reservations go back."""
        try:
            if job.seq is not None:
                self._engine.release(job.seq)
        finally:
            with self._core.lock:
                self._core.let_go(job.record)
        self._bury()

    def _bury(self) -> None:
        """Give back the memory of dropped checkpoints, outside the lock."""
        if self._core.dropped:
            self._core.dropped.clear()

    def _count_lookup(self, job: Job, entry: Entry | None) -> None:
        stats, session = self._core.stats, job.record.session
        stats.add("prefix_cache_lookups", "miss" if entry is None else "hit")
        mark = session.checkpoint_mark if session is not None else None
        if mark is not None and hash(job.prepared.prompt_tokens[: mark[0]]) != mark[1]:
            stats.add("prefix_mismatches")

    def _mask(self, job: Job) -> Any:
        return None if job.matcher is None else job.matcher.mask()

    def _spend(self, kind: str, began: float) -> float:
        seconds = self._clock() - began
        self._core.stats.spend(kind, seconds)
        return seconds
