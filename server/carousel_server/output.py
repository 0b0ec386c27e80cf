"""The bounded queue between the worker and one writer. The worker never waits here; a full queue says so.

Both sides may be on different threads. The writer's wake-up is one `call_soon_threadsafe` for all queues that got
events during a turn of the worker, not one for each event.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Collection

from carousel_server.turn import CallDelta, Completion, Event, Failed, Progress, TextDelta

EVENT_BYTES = 128  # what an event weighs besides its text


def event_bytes(event: Event) -> int:
    """Bytes an event holds while it waits. The last event is always taken, so it weighs nothing."""
    if isinstance(event, TextDelta):
        tokens = EVENT_BYTES * sum(1 + len(one.top) for one in event.logprobs) if event.logprobs else 0
        return EVENT_BYTES + len(event.text) + tokens
    if isinstance(event, CallDelta):
        return EVENT_BYTES + len(event.call.name) + sum(len(k) + len(str(v)) for k, v in event.call.arguments.items())
    return 0


class Waker:
    """Wakes writers on the loop's thread. `mark` from any thread, then `flush` once."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._marked: deque[OutputQueue] = deque()
        self._scheduled = False
        self._lock = threading.Lock()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop whose writers are woken."""
        self._loop = loop

    def mark(self, queue: "OutputQueue") -> None:
        """This queue has something for its writer."""
        self._marked.append(queue)

    def flush(self) -> None:
        """Let the loop wake every marked writer."""
        with self._lock:
            if self._scheduled or self._loop is None or not self._marked:
                return
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            # The loop is closed: there is no writer left to wake.
            self._marked.clear()

    def _drain(self) -> None:
        with self._lock:
            self._scheduled = False
        while self._marked:
            self._marked.popleft().wake()


class OutputQueue:
    """Events of one request, in order, up to `limit` bytes; the last one is Completion or Failed."""

    def __init__(self, limit: int, waker: Waker) -> None:
        self.limit = limit
        self._waker = waker
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Bytes that wait for the writer."""
        return self._bytes

    @property
    def ended(self) -> bool:
        """Whether the last event was put."""
        return self._ended

    def put(self, events: Collection[Event]) -> bool:
        """Add events; False and nothing added when they do not fit. After the end everything is dropped, True."""
        size = sum(map(event_bytes, events))
        with self._lock:
            if self._ended:
                return True
            if self._bytes + size > self.limit:
                return False
            self._bytes += size
            for event in events:
                if isinstance(event, Progress) and self._events and isinstance(self._events[-1], Progress):
                    self._events.pop()
                self._events.append(event)
        if events:
            self._waker.mark(self)
        return True

    def end(self, event: Completion | Failed, *, drop: bool = False) -> bool:
        """Put the last event; `drop` first throws away what waits. False if the queue had ended before."""
        with self._lock:
            if self._ended:
                return False
            if drop:
                self._events.clear()
                self._bytes = 0
            self._ended = True
            self._events.append(event)
        self._waker.mark(self)
        return True

    def take(self) -> list[Event]:
        """Everything that waits, oldest first."""
        with self._lock:
            events = list(self._events)
            self._events.clear()
            self._bytes = 0
        return events

    def wake(self) -> None:
        """On the loop's thread: the writer may look, if there is still something."""
        if self._events:
            self._let_go()

    async def events(self, seconds: float | None = None) -> list[Event]:
        """Everything that waits, or what comes first; nothing if `seconds` pass before. One reader only."""
        if not self._events:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if seconds is None else loop.call_later(max(0.0, seconds), self._let_go)
            try:
                if not self._events:
                    await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        return self.take()

    def _let_go(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
