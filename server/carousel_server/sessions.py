"""Committed turns, pins and retention. Pure: `now` is an argument. Knows neither prompts nor GPU state.

A session changes in one place, `commit`. A turn pins it; whatever ends without a commit leaves it as it was.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from carousel_server.failure import Failure
from carousel_server.limits import SessionLimits
from carousel_server.turn import Message, RngState, Settings, Tool
from carousel_server.units import human_bytes

SESSION_BYTES = 1024
MESSAGE_BYTES = 256
CALL_BYTES = 512


def message_bytes(message: Message) -> int:
    """What one message of a history is charged."""
    size = MESSAGE_BYTES + len(message.content.encode())
    for call in message.tool_calls:
        size += CALL_BYTES + len(call.name) + len(json.dumps(dict(call.arguments), ensure_ascii=False).encode())
    return size


def history_bytes(messages: Iterable[Message], tools: Iterable[Tool] = ()) -> int:
    """What a session with this history is charged."""
    declared = sum(MESSAGE_BYTES + len(json.dumps(dict(tool.definition)).encode()) for tool in tools)
    return SESSION_BYTES + declared + sum(message_bytes(message) for message in messages)


@dataclass
class Session:
    """One conversation. `turn` is the request that has it pinned."""

    id: str
    key: str
    settings: Settings
    tools: tuple[Tool, ...]
    context_tokens: int
    history: tuple[Message, ...]
    rng: RngState
    bytes: int
    created: float
    used: float
    turns: int = 0
    last_request_id: str | None = None
    turn: str | None = None
    growth: int = 0  # bytes reserved for the turn that is about to be committed
    checkpoint_mark: tuple[int, int] | None = None  # length and hash of the last turn's checkpoint, to see it missed


class Sessions:
    """The store. `on_drop(session, why)` hears of every session that goes, `why` being idle, evicted or deleted."""

    def __init__(
        self, limits: SessionLimits, on_drop: Callable[[Session, str], None] = lambda session, why: None
    ) -> None:
        self.limits = limits
        self._on_drop = on_drop
        self._by_id: dict[str, Session] = {}  # least recently used first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._by_id

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    @property
    def bytes(self) -> int:
        """Bytes of all histories, with those reserved for coming commits."""
        return self._bytes

    @property
    def in_flight(self) -> int:
        """Sessions with a turn."""
        return sum(session.turn is not None for session in self._by_id.values())

    @property
    def newest_use(self) -> float | None:
        """When the latest turn of any session ended."""
        return max((session.used for session in self._by_id.values()), default=None)

    def get(self, session_id: str, key: str) -> Session | None:
        """The session if it is here and belongs to this key."""
        session = self._by_id.get(session_id)
        return session if session is not None and session.key == key else None

    def create(self, session: Session) -> None:
        """Add a session, evicting idle ones for it. Failure sessions_full when all others are in a turn."""
        if session.bytes > self._most:
            raise Failure(
                "limits_exceeded",
                f"the session's system message and tools take {session.bytes} bytes, "
                f"limits.sessions.bytes is {self._most}: shorten them",
                param="messages",
            )
        if not self._make_room(self.limits.count - 1, self._most - session.bytes):
            raise Failure(
                "sessions_full",
                f"all {len(self)} sessions ({human_bytes(self._bytes)}; limits {self.limits.count} and "
                f"{human_bytes(self._most)}) have a turn in progress: try again when one has ended",
            )
        self._by_id[session.id] = session
        self._bytes += session.bytes

    def pin(self, session: Session, request_id: str) -> None:
        """Begin a turn. Failure session_busy when one is in progress."""
        if session.turn is not None:
            raise Failure(
                "session_busy",
                f"session {session.id} has a turn in progress (request {session.turn}): wait for it or cancel it",
                param="session_id",
            )
        session.turn = request_id
        self._touch(session)

    def unpin(self, session: Session, now: float) -> None:
        """End a turn, committed or not."""
        self._release_growth(session)
        session.turn = None
        session.used = now
        self._touch(session)
        self.enforce()

    def prepare(self, session: Session, size: int) -> int:
        """Reserve what the history grows to, evicting idle sessions; returns the growth. Failure session_full."""
        self._release_growth(session)
        growth = max(0, size - session.bytes)
        if not self._make_room(len(self), self._most - growth):
            raise Failure(
                "session_full",
                f"the history would grow by {growth} bytes to {size}; {self._bytes} of {self._most} "
                "(limits.sessions.bytes) are held and no idle session is left to evict: "
                "the turn was not committed; retry it later or start a new session",
            )
        session.growth = growth
        self._bytes += growth
        return growth

    def abandon(self, session: Session) -> None:
        """Give back what `prepare` reserved."""
        self._release_growth(session)

    def commit(self, session: Session, history: tuple[Message, ...], size: int, rng: RngState, request_id: str) -> None:
        """The only change of a session. `prepare` has reserved the bytes."""
        self._bytes += size - session.bytes - session.growth
        session.growth = 0
        session.bytes, session.history, session.rng = size, history, rng
        session.turns += 1
        session.last_request_id = request_id

    def delete(self, session: Session) -> None:
        """Drop by request of its owner. Failure session_busy during a turn."""
        if session.turn is not None:
            raise Failure(
                "session_busy",
                f"session {session.id} has a turn in progress (request {session.turn}): cancel it first",
                param="session_id",
            )
        self._drop(session, "deleted")

    def sweep(self, now: float) -> None:
        """Drop what was idle for too long."""
        for session in self:
            if session.turn is None and now - session.used >= self.limits.idle:
                self._drop(session, "idle")

    def enforce(self) -> None:
        """Evict idle sessions until the limits hold, as far as pins allow."""
        self._make_room(self.limits.count, self._most)

    @property
    def _most(self) -> int:
        return self.limits.bytes or 0

    def _make_room(self, count: int, size: int) -> bool:
        """Evict idle sessions, least recently used first, down to these; all or nothing is not promised."""
        for session in self:
            if len(self._by_id) <= count and self._bytes <= size:
                break
            if session.turn is None:
                self._drop(session, "evicted")
        return len(self._by_id) <= count and self._bytes <= size

    def _drop(self, session: Session, why: str) -> None:
        del self._by_id[session.id]
        self._bytes -= session.bytes + session.growth
        self._on_drop(session, why)

    def _touch(self, session: Session) -> None:
        self._by_id[session.id] = self._by_id.pop(session.id)

    def _release_growth(self, session: Session) -> None:
        self._bytes -= session.growth
        session.growth = 0
