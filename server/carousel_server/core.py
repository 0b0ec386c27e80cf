"""The state that the event loop and the worker share, and every transition of it. Call it under `lock`; `now` is given.

No clock, socket, thread or engine in here: the loop's side is service.py, the worker's side is worker.py.
"""

import threading
from collections import deque
from dataclasses import replace

from carousel_server.admission import Ledger, Reservation
from carousel_server.drain import Drain
from carousel_server.engine.protocol import EngineInfo
from carousel_server.failure import Failure
from carousel_server.limits import EngineSettings, Limits
from carousel_server.output import Waker
from carousel_server.prefix_cache import Entry, PrefixCache
from carousel_server.registry import CancelCause, Record, Registry
from carousel_server.sessions import Session, Sessions, history_bytes
from carousel_server.stats import Stats
from carousel_server.turn import Completion, Failed, PreparedTurn, Progress

CAUSES: dict[CancelCause, str] = {
    "api": "the request was cancelled",
    "disconnect": "the client went away",
    "write_timeout": "the client read nothing for limits.socketTimeout",
    "queue_full": "the client read too slowly: engine.outputQueueBytes of output were waiting",
    "shutdown": "the server is shutting down: send the turn again",
    "time_out": "the request took too long",
}
# A writer that is gone or too slow gets nothing more; what waits for it is dropped at once.
_DROPPING = frozenset({"disconnect", "write_timeout", "queue_full"})


class Core:
    """Registry, queue, sessions, prefix cache and reservations of one server."""

    def __init__(self, limits: Limits, engine: EngineSettings, info: EngineInfo, context_tokens: int) -> None:
        self.lock = threading.Lock()
        self.waker = Waker()
        self.stats = Stats()
        self.registry = Registry()
        self.drain = Drain()
        self.queue: deque[Record] = deque()
        self.working: set[Record] = set()  # admitted and not yet let go by the worker
        self.blocked = False  # the engine had no memory for the head of the queue: wait until a request ends
        self.limits = limits
        self.engine = engine
        self.context_tokens = context_tokens
        self.ledger = Ledger(limits, engine, info)
        self.sessions = Sessions(limits.sessions, self._session_dropped)
        self.cache = PrefixCache(limits.prefix_cache, self._entry_dropped)
        self.dropped: list[Entry] = []  # their memory is given back by the worker, outside the lock

    @property
    def running(self) -> int:
        """Requests that the worker has a place for."""
        return len(self.working)

    def attach(self, info: EngineInfo) -> None:
        """The engine is there: its numbers replace the plan's. Only before the first request."""
        self.ledger = Ledger(self.limits, self.engine, info)
        self.context_tokens = min(self.context_tokens, info.context_tokens)

    def set_limits(self, limits: Limits) -> None:
        """Every byte limit set. Lowering evicts what is idle; pinned and running things stay."""
        self.limits = self.ledger.limits = limits
        self.sessions.limits, self.cache.limits = limits.sessions, limits.prefix_cache
        self.sessions.enforce()
        self.cache.enforce()
        for record in list(self.queue):
            try:
                self._refuse_impossible(record)
            except Failure as failure:
                self.fail(record, failure)

    def submit(self, record: Record, prepared: PreparedTurn, now: float) -> None:
        """Put a prepared turn into the queue. Failure cancelled, limits_exceeded, queue_full."""
        if record.phase != "preparing":
            raise self.cancelled(record)
        record.prepared = prepared
        record.prompt_tokens = len(prepared.prompt_tokens)
        self._refuse_impossible(record)
        free = max(0, self.limits.active_requests - self.running)
        if len(self.queue) >= self.limits.queued_requests + free:
            raise Failure(
                "queue_full",
                f"{self.running} requests run and {len(self.queue)} wait; limits.queuedRequests is "
                f"{self.limits.queued_requests}: try again later",
            )
        self.registry.advance(record, "queued")
        record.queued_at = now
        self.queue.append(record)
        self._tell_positions()

    def reject(self, record: Record, code: str) -> None:
        """The turn was refused before it ran; the client has its error, so no event is left for a writer."""
        if self.registry.fail(record):
            self.count_rejected(code)

    def count_rejected(self, code: str) -> None:
        """A request got an error instead of a place; `invalid` stands for what preparing refused."""
        self.stats.add("requests", "rejected")
        self.stats.add("requests_rejected", code)

    def admit(self, now: float) -> Record | None:
        """The head of the queue if it fits beside what runs, with its reservation made."""
        if not self.queue or self.blocked:
            return None
        record = self.queue[0]
        assert record.prepared is not None
        need = self.ledger.needs(record.prepared.capacity_tokens)
        if not self.ledger.fits(need, self.running):
            return None
        self.queue.popleft()
        self.ledger.set(record.number, need)
        self.registry.advance(record, "prefill")
        self.working.add(record)
        self.stats.spend("waiting", now - record.queued_at)
        self._tell_positions()
        return record

    def postpone(self, record: Record, now: float) -> None:
        """The engine had no memory for an admitted request: back to the head of the queue."""
        self._let_go(record, Reservation())
        self.blocked = self.running > 0
        if self.registry.advance(record, "queued"):
            record.queued_at = now
            self.queue.appendleft(record)

    def complete(self, record: Record, completion: Completion) -> bool:
        """Generation is over: reserve the new history and show the end to the writer. False if it was decided."""
        if not self.registry.advance(record, "completing"):
            return False
        if record.session is not None:
            assert record.prepared is not None
            history = (*record.prepared.messages, completion.message)
            record.history_bytes = history_bytes(history, record.session.tools)
            try:
                self.sessions.prepare(record.session, record.history_bytes)
            except Failure as failure:
                self.fail(record, failure)
                return False
        record.output.end(completion)
        return True

    def let_go(self, record: Record) -> None:
        """The worker holds nothing more for the record; output that waits is still charged until it is closed."""
        held = self.ledger.get(record.number)
        if record.closed or record.cancelled:
            self._let_go(record, Reservation())
        else:
            growth = record.session.growth if record.session is not None else 0
            waiting = min(held.response, 2 * record.raw_bytes + record.output.bytes)
            self._let_go(record, Reservation(response=waiting, history=growth))

    def claim(self, record: Record, completion: Completion) -> bool:
        """Decide for completion and commit the session, or learn that a cancel came first."""
        if not self.registry.claim(record):
            return False
        session, prepared = record.session, record.prepared
        assert prepared is not None
        if session is not None:
            history = (*prepared.messages, completion.message)
            self.sessions.commit(session, history, record.history_bytes, completion.rng, record.id)
            session.checkpoint_mark = record.checkpoint_mark
            self.ledger.set(record.number, replace(self.ledger.get(record.number), history=0))
        self.stats.add("requests", "completed")
        return True

    def cancel(self, record: Record, cause: CancelCause) -> bool:
        """Cancel before the claim, in any phase; True if this call decided it."""
        before = record.phase
        if not self.registry.cancel(record, cause):
            return False
        self.stats.add("requests", "cancelled")
        self.stats.add("requests_cancelled", cause)
        self._undecided_ends(record, before)
        failure = self.cancelled(record)
        record.output.end(Failed(failure.code, failure.message, failure.details), drop=cause in _DROPPING)
        return True

    def fail(self, record: Record, failure: Failure) -> bool:
        """End with an error before the claim; True if this call decided it."""
        before = record.phase
        if not self.registry.fail(record):
            return False
        self.stats.add("requests", "failed")
        self._undecided_ends(record, before)
        record.output.end(Failed(failure.code, failure.message, failure.details))
        return True

    def close(self, record: Record, now: float) -> None:
        """The final output was written or given up. What is not decided yet is cancelled. Idempotent."""
        if record.closed:
            return
        record.closed = True
        if record.phase == "preparing":
            self.reject(record, "invalid")
        self.cancel(record, "disconnect")
        self.registry.release(record)
        if record.session is not None:
            self.sessions.unpin(record.session, now)
        if record not in self.working:
            self.ledger.set(record.number, Reservation())
            self.blocked = False

    def cancelled(self, record: Record) -> Failure:
        """The error of a cancelled request."""
        cause = record.cause or "api"
        code = "server_shutdown" if cause == "shutdown" else "cancelled"
        return Failure(code, CAUSES[cause], details={"cause": cause})

    def sweep(self, now: float) -> None:
        """Drop what was idle for too long."""
        self.sessions.sweep(now)
        self.cache.sweep(now)

    def _refuse_impossible(self, record: Record) -> None:
        prepared = record.prepared
        assert prepared is not None
        self.ledger.refuse_impossible(prepared.capacity_tokens)
        if record.session is not None:
            size, most = history_bytes(prepared.messages, record.session.tools), self.limits.sessions.bytes or 0
            if size > most:
                raise Failure(
                    "limits_exceeded",
                    f"the session's history would take {size} bytes, limits.sessions.bytes is {most}: "
                    "start a new session",
                    param="messages",
                )

    def _undecided_ends(self, record: Record, before: str) -> None:
        if before == "queued":
            self.queue.remove(record)
            self._tell_positions()
        if record.session is not None:
            self.sessions.abandon(record.session)
        if record not in self.working:
            self.ledger.set(record.number, Reservation())

    def _let_go(self, record: Record, remaining: Reservation) -> None:
        self.ledger.set(record.number, remaining)
        self.working.discard(record)
        self.blocked = False

    def _tell_positions(self) -> None:
        for position, record in enumerate(self.queue, 1):
            if record.request.stream:
                record.output.put([Progress("queued", position, len(self.queue))])

    def _session_dropped(self, session: Session, why: str) -> None:
        self.stats.add("sessions_dropped", why)

    def _entry_dropped(self, entry: Entry, why: str) -> None:
        self.stats.add("prefix_cache_dropped", why)
        self.dropped.append(entry)
