"""This pod's sessions and turns: service.Service over the shared core. The event loop's side of the lock.

Adds the clock, the ids and the answers for what is not here; every transition is the core's.
"""

import time
from collections.abc import Callable

from carousel_server.admin_state import AdminState, DrainRequest, Peer, PeersUpdate, RequestCounts, SessionCounts
from carousel_server.core import Core
from carousel_server.engine.protocol import Engine, StepStats
from carousel_server.failure import Failure
from carousel_server.identity import Identity, Verdict
from carousel_server.limits import Limits
from carousel_server.local_turn import LocalTurn, effective_settings
from carousel_server.memory_plan import MemoryPlan
from carousel_server.output import OutputQueue
from carousel_server.registry import Record
from carousel_server.sessions import Session, history_bytes
from carousel_server.stats import Sample, exposition
from carousel_server.turn import Message, RngState, Settings, Tool, TurnRequest
from carousel_server.views import RequestInfo, SessionInfo
from carousel_server.worker_thread import WorkerThread


class LocalService:
    """See service.Service for what each method means. `replan` fills the unset byte limits of new Limits."""

    def __init__(
        self,
        core: Core,
        *,
        plan: MemoryPlan,
        replan: Callable[[Limits], MemoryPlan],
        identity: Identity,
        entropy: Callable[[int], bytes],
        version: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core
        self.identity = identity
        self.plan = plan
        self.limits_generation = 0
        self._peers = PeersUpdate(generation=0)
        self._replan = replan
        self._entropy = entropy
        self._version = version
        self._clock = clock
        self._started = clock()
        self._failed = ""
        self._notify: Callable[[], None] = lambda: None
        self._thread: WorkerThread | None = None
        self._engine: Engine | None = None

    @property
    def ordinal(self) -> int:
        """This pod's number."""
        return self.identity.ordinal

    @property
    def boot_id(self) -> str:
        """This process's id."""
        return self.identity.boot_id

    @property
    def draining(self) -> bool:
        """Whether new sessions and sessionless requests are refused."""
        return self.core.drain.active

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The pods of this InferenceServer, this one perhaps among them."""
        return tuple(self._peers.peers)

    def judge(self, identifier: str) -> Verdict:
        """Where a session or request id belongs."""
        return self.identity.judge(identifier, self._peers.peers, self._peers.lost)

    @property
    def alive(self) -> bool:
        """Whether the worker's thread runs."""
        return self._thread is not None and self._thread.alive

    def attach(self, engine: Engine, notify: Callable[[], None], thread: WorkerThread | None = None) -> None:
        """The worker is there; `notify` tells it that there may be something to do."""
        self._engine, self._notify, self._thread = engine, notify, thread

    def stop(self, timeout: float = 5.0) -> None:
        """Cancel what is left and end the worker after its running step."""
        with self.core.lock:
            for record in self.core.registry:
                self.core.cancel(record, "shutdown")
        self.core.waker.flush()
        if self._thread is not None:
            self._thread.stop(timeout)

    def lost(self, message: str) -> None:
        """The device is lost: nothing can be served any more. From any thread."""
        self._failed = message

    def begin(self, request: TurnRequest) -> LocalTurn:
        """Reserve the id, pin the session."""
        with self.core.lock:
            try:
                record = self._register(request, self._clock())
            except Failure as failure:
                self.core.count_rejected(failure.code)
                raise
            settings, rng = effective_settings(request, record.session), self._rng(request, record.session)
        return LocalTurn(record, settings, rng, self.core, self._clock, self._tell)

    def cancel(self, request_id: str, key: str) -> None:
        """Cancel by id."""
        with self.core.lock:
            record = self.core.registry.get(request_id, key)
            if record is None:
                raise self._missing_request(request_id)
            if record.phase == "claimed":
                raise Failure("already_completed", f"request {request_id!r} has completed: it cannot be cancelled")
            self.core.cancel(record, "api")
        self._tell()

    def create_session(
        self, key: str, settings: Settings, system: str | None, tools: tuple[Tool, ...], context_tokens: int | None
    ) -> SessionInfo:
        """A new session, its history empty or the system message."""
        now, core = self._clock(), self.core
        with core.lock:
            self._refuse_if_not_serving(new=True)
            context = self._checked_context(context_tokens, core.context_tokens)
            history = () if system is None else (Message("system", system),)
            session = Session(
                id=self.identity.new_id(),
                key=key,
                settings=settings,
                tools=tools,
                context_tokens=context,
                history=history,
                rng=RngState(self._seed() if settings.seed is None else settings.seed),
                bytes=history_bytes(history, tools),
                created=now,
                used=now,
            )
            core.sessions.create(session)
            return SessionInfo.of(session, now)

    def show_session(self, session_id: str, key: str) -> SessionInfo:
        """One session."""
        with self.core.lock:
            return SessionInfo.of(self._session(session_id, key), self._clock())

    def list_sessions(self, key: str) -> list[SessionInfo]:
        """The key's sessions, the latest used last."""
        now = self._clock()
        with self.core.lock:
            return [SessionInfo.of(session, now) for session in self.core.sessions if session.key == key]

    def delete_session(self, session_id: str, key: str) -> None:
        """Drop a session that has no turn."""
        with self.core.lock:
            self.core.sessions.delete(self._session(session_id, key))

    def list_requests(self, key: str) -> list[RequestInfo]:
        """The key's requests that have not ended."""
        now, core = self._clock(), self.core
        with core.lock:
            positions = {record: place for place, record in enumerate(core.queue, 1)}
            return [
                RequestInfo.of(record, positions.get(record), core.ledger.get(record.number).total, now)
                for record in core.registry
                if record.request.key == key
            ]

    def state(self) -> AdminState:
        """For the operator."""
        now, core = self._clock(), self.core
        stats = StepStats() if self._engine is None else self._engine.stats
        with core.lock:
            in_flight, newest = core.sessions.in_flight, core.sessions.newest_use
            drain = core.drain.state(now)
            phase = "failed" if self._failed else "closed" if core.drain.closed else "draining" if drain else "serving"
            return AdminState(
                version=self._version,
                boot_id=self.boot_id,
                ordinal=self.ordinal,
                phase=phase,
                progress=stats.loaded,
                message=self._failed or stats.loading,
                uptime_seconds=now - self._started,
                sessions=SessionCounts(
                    active=len(core.sessions),
                    in_flight=in_flight,
                    capacity=core.limits.sessions.count,
                    newest_use_seconds=None if newest is None else 0.0 if in_flight else now - newest,
                ),
                requests=RequestCounts(queued=len(core.queue), running=len(core.registry) - len(core.queue)),
                reserved_bytes=core.ledger.total,
                drain=drain,
                limits=core.limits,
                limits_generation=self.limits_generation,
                peers_generation=self._peers.generation,
                plan_digest=self.plan.digest,
                plan_host_bytes=self.plan.host_bytes,
                plan_gpu_bytes=self.plan.gpu_bytes,
            )

    def drain(self, request: DrainRequest) -> None:
        """Refuse new sessions and sessionless requests."""
        with self.core.lock:
            self.core.drain.begin(request, self._clock())

    def close_drain(self, force: bool) -> bool:
        """Refuse every further turn, if quiet."""
        now, core = self._clock(), self.core
        with core.lock:
            grace = core.drain.request.idle_grace_seconds if core.drain.request is not None else 0.0
            newest = core.sessions.newest_use
            quiet = not len(core.registry) and (newest is None or now - newest >= grace)
            return core.drain.close(quiet=quiet, force=force)

    def undo_drain(self) -> None:
        """Take work again."""
        with self.core.lock:
            self.core.drain.undo()

    def session_seconds(self) -> float | None:
        """For `X-Session-Deadline`: seconds that a session whose turn ends now can count on; None without a drain."""
        with self.core.lock:
            return self.core.drain.session_seconds(self._clock())

    def set_limits(self, generation: int, limits: Limits) -> bool:
        """Change every limit at once. Failure limits_exceeded when the plan would not fit the memory that is there."""
        plan = self._replan(limits)
        with self.core.lock:
            if generation < self.limits_generation:
                return False
            if not plan.fits:
                raise Failure("limits_exceeded", "; ".join(plan.errors), param="limits")
            self.limits_generation, self.plan = generation, plan
            self.core.set_limits(plan.limits)
        self._tell()
        return True

    def set_peers(self, update: PeersUpdate) -> bool:
        """False: an older generation than the one in force."""
        if update.generation < self._peers.generation:
            return False
        self._peers = update
        return True

    def metrics(self) -> bytes:
        """Prometheus text."""
        with self.core.lock:
            counters, gauges = list(self.core.stats.samples()), list(self._gauges())
        if self._engine is not None:
            stats = self._engine.stats
            counters += [
                ("carousel_drafts", ("proposed",), float(stats.drafts_proposed)),
                ("carousel_drafts", ("accepted",), float(stats.drafts_accepted)),
                ("carousel_switches", ("save",), float(stats.saves)),
                ("carousel_switches", ("restore",), float(stats.restores)),
            ]
        return exposition(counters, gauges)

    def _gauges(self) -> list[Sample]:
        core = self.core
        phases = dict.fromkeys(("preparing", "queued", "prefill", "decode", "completing", "claimed"), 0)
        for record in core.registry:
            phases[record.phase] = phases.get(record.phase, 0) + 1
        plain = {
            "carousel_reserved_bytes": core.ledger.total,
            "carousel_sessions": len(core.sessions),
            "carousel_sessions_in_flight": core.sessions.in_flight,
            "carousel_sessions_bytes": core.sessions.bytes,
            "carousel_prefix_cache_entries": len(core.cache),
            "carousel_prefix_cache_bytes": core.cache.bytes,
            "carousel_limits_generation": self.limits_generation,
            "carousel_serving": int(not self._failed and not core.drain.closed),
            "carousel_draining": int(core.drain.active),
        }
        found: list[Sample] = [("carousel_requests_now", (phase,), float(n)) for phase, n in phases.items()]
        return found + [(name, (), float(value)) for name, value in plain.items()]

    def _register(self, request: TurnRequest, now: float) -> Record:
        core = self.core
        self._refuse_if_not_serving(new=request.session_id is None)
        session = None if request.session_id is None else self._session(request.session_id, request.key)
        record = Record(
            number=core.registry.number(),
            request=request,
            id=request.id or self.identity.new_id(),
            output=OutputQueue(core.engine.output_queue_bytes, core.waker),
            created=now,
            session=session,
            context_tokens=self._context(session, request),
        )
        core.registry.refuse_taken(record.id)
        if session is not None:
            core.sessions.pin(session, record.id)
        core.registry.add(record)
        return record

    def _refuse_if_not_serving(self, *, new: bool) -> None:
        if self._failed:
            raise Failure("generation_failed", f"the server cannot generate any more: {self._failed}")
        drain = self.core.drain
        if drain.closed or (drain.active and new):
            reason = drain.request.reason if drain.request is not None else ""
            raise Failure(
                "draining",
                f"this pod is being drained ({reason}): {'it is closed' if drain.closed else 'live sessions go on'}; "
                "send the request again, another pod may take it",
            )

    def _session(self, session_id: str, key: str) -> Session:
        session = self.core.sessions.get(session_id, key)
        if session is not None:
            return session
        if session_id in self.core.sessions:
            # Another key's session: nothing about it is told, not even that it exists.
            raise Failure("not_found", f"there is no session {session_id!r} here", param="session_id")
        raise self.identity.missing(session_id, "session", self._peers.peers, self._peers.lost)

    def _missing_request(self, request_id: str) -> Failure:
        return self.identity.missing(request_id, "request", self._peers.peers, self._peers.lost)

    def _context(self, session: Session | None, request: TurnRequest) -> int:
        most = self.core.context_tokens if session is None else session.context_tokens
        return self._checked_context(request.context_tokens, most)

    def _checked_context(self, wanted: int | None, most: int) -> int:
        if wanted is None:
            return most
        if wanted > most:
            raise Failure(
                "context_length_exceeded",
                f"context_tokens is {wanted}, the most here is {most}: ask for less",
                param="context_tokens",
            )
        return wanted

    def _rng(self, request: TurnRequest, session: Session | None) -> RngState:
        if request.settings.seed is not None and (session is None or "seed" in request.given):
            return RngState(request.settings.seed)
        return session.rng if session is not None else RngState(self._seed())

    def _seed(self) -> int:
        return int.from_bytes(self._entropy(8), "little")

    def _tell(self) -> None:
        self.core.waker.flush()
        self._notify()
