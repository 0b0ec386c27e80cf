"""One registered turn on this pod: service.Turn over the shared core."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from carousel_server.core import Core
from carousel_server.failure import Failure
from carousel_server.registry import CancelCause, Record
from carousel_server.sessions import Session
from carousel_server.turn import Completion, Event, Message, PreparedTurn, RngState, Settings, TurnRequest


def effective_settings(request: TurnRequest, session: Session | None) -> Settings:
    """What the request gave, over the session's where it was silent."""
    if session is None:
        return request.settings
    return replace(session.settings, **{name: getattr(request.settings, name) for name in request.given})


class LocalTurn:
    """See service.Turn. `tell` wakes writers and the worker after a change."""

    def __init__(
        self,
        record: Record,
        settings: Settings,
        rng: RngState,
        core: Core,
        clock: Callable[[], float],
        tell: Callable[[], None],
    ) -> None:
        session = record.session
        self.id = record.id
        self.history: tuple[Message, ...] = session.history if session is not None else ()
        self.tools = record.request.tools or (session.tools if session is not None else ())
        self.settings = settings
        self.context_tokens = record.context_tokens
        self.rng = rng
        self.record = record
        self._core = core
        self._clock = clock
        self._tell = tell

    def submit(self, prepared: PreparedTurn) -> None:
        """Queue for the worker."""
        with self._core.lock:
            try:
                self._core.submit(self.record, prepared, self._clock())
            except Failure as failure:
                self._core.reject(self.record, failure.code)
                raise
        self._tell()

    async def events(self, seconds: float | None = None) -> list[Event]:
        """What waits, or what comes within `seconds`."""
        self._core.waker.bind(asyncio.get_running_loop())
        return await self.record.output.events(seconds)

    def claim(self, completion: Completion) -> bool:
        """Decide completion."""
        with self._core.lock:
            return self._core.claim(self.record, completion)

    def cancel(self, cause: CancelCause) -> None:
        """Before the claim it ends the turn, after it nothing happens."""
        with self._core.lock:
            self._core.cancel(self.record, cause)
        self._tell()

    def close(self) -> None:
        """The id is free, the session unpinned."""
        with self._core.lock:
            self._core.close(self.record, self._clock())
        self._tell()
