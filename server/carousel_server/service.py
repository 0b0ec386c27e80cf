"""The door between HTTP and the core: sessions and turns as typed calls. Knows no socket and no JSON.

Methods without `async` never block. All of them belong to the event loop's thread; the worker thread is behind them.
Every method raises Failure (failure.py) for what a client did or must be told.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from carousel_server.admin_state import AdminState, DrainRequest
from carousel_server.limits import Limits
from carousel_server.turn import Completion, Event, Message, PreparedTurn, RngState, Settings, Tool, TurnRequest

CancelCause = Literal["api", "disconnect", "write_timeout", "queue_full", "shutdown", "time_out"]


class Turn(Protocol):
    """A registered turn: its id is reserved and its session pinned until `close`."""

    id: str
    history: tuple[Message, ...]  # committed messages of the session, () without one
    tools: tuple[Tool, ...]  # of the request, else of the session
    settings: Settings  # what the request gave, over the session's where it was silent
    context_tokens: int  # the smallest of the server's, the session's and the request's
    rng: RngState  # where this turn's draws start

    def submit(self, prepared: PreparedTurn) -> None:
        """Queue for the worker. Raises Failure queue_full, limits_exceeded, draining."""

    async def events(self, seconds: float | None = None) -> list[Event]:
        """What waits: progress, deltas, and last exactly one Completion or Failed. Waits for something; after
        `seconds` without anything the list is empty.
        """

    def claim(self, completion: Completion) -> bool:
        """Decide completion: True commits the session, False means that a cancel came first. Once."""

    def cancel(self, cause: CancelCause) -> None:
        """As a cancel of the id; no effect after the claim."""

    def close(self) -> None:
        """The final output was written or given up: the id is free, the session unpinned. Idempotent."""


class Service(Protocol):
    """What routes.py and admin.py may do."""

    def begin(self, request: TurnRequest) -> Turn:
        """Reserve the id, pin the session. 404/409/410/503 come from here."""

    def cancel(self, request_id: str, key: str) -> None:
        """Cancel by id. Failure not_found, already_completed; twice is the same answer."""

    def create_session(
        self, key: str, settings: Settings, system: str | None, tools: tuple[Tool, ...], context_tokens: int | None
    ) -> "SessionView": ...

    def show_session(self, session_id: str, key: str) -> "SessionView": ...

    def list_sessions(self, key: str) -> Sequence["SessionView"]: ...

    def delete_session(self, session_id: str, key: str) -> None: ...

    def list_requests(self, key: str) -> Sequence["RequestView"]: ...

    def state(self) -> AdminState: ...

    def drain(self, request: DrainRequest) -> None: ...

    def close_drain(self, force: bool) -> bool:
        """False: not quiet."""

    def undo_drain(self) -> None: ...

    def set_limits(self, generation: int, limits: Limits) -> bool:
        """False: an older generation than the one in force."""


class SessionView(Protocol):
    """What a client may see of a session."""

    @property
    def id(self) -> str: ...

    @property
    def created_seconds_ago(self) -> float: ...

    @property
    def idle_seconds(self) -> float: ...

    @property
    def turns(self) -> int: ...

    @property
    def last_request_id(self) -> str | None: ...

    @property
    def in_flight(self) -> bool: ...

    @property
    def context_tokens(self) -> int: ...

    @property
    def history_bytes(self) -> int: ...


class RequestView(Protocol):
    """What a client may see of a request on this pod."""

    @property
    def id(self) -> str: ...

    @property
    def session_id(self) -> str | None: ...

    @property
    def phase(self) -> str: ...

    @property
    def queue_position(self) -> int | None: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...

    @property
    def output_tokens(self) -> int: ...

    @property
    def reserved_bytes(self) -> int: ...

    @property
    def age_seconds(self) -> float: ...
