"""Request ids, phases, cancel and claim: one table, and the only place that decides completion or cancellation. Pure.

    preparing -> queued -> prefill -> decode -> completing -> claimed -> closed
Any phase before `claimed` may end in `cancelled` or `failed`. What was decided stays decided.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from carousel_server.failure import Failure
from carousel_server.output import OutputQueue
from carousel_server.sessions import Session
from carousel_server.turn import PreparedTurn, TurnRequest

CancelCause = Literal["api", "disconnect", "write_timeout", "queue_full", "shutdown", "time_out"]
Phase = Literal["preparing", "queued", "prefill", "decode", "completing", "claimed", "cancelled", "failed"]

RUNNING = frozenset({"prefill", "decode"})
ENDED = frozenset({"claimed", "cancelled", "failed"})


@dataclass(eq=False, repr=False)
class Record:
    """One request of this pod, from registration through final output."""

    number: int  # unique within the process, unlike an id that a client may use again later
    request: TurnRequest
    id: str
    output: OutputQueue
    created: float
    session: Session | None
    context_tokens: int
    phase: Phase = "preparing"
    cause: CancelCause | None = None
    prepared: PreparedTurn | None = None
    queued_at: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    history_bytes: int = 0
    raw_bytes: int = 0  # decoded output so far
    checkpoint_mark: tuple[int, int] | None = None  # length and hash of the end-of-turn checkpoint's tokens
    closed: bool = False

    def __repr__(self) -> str:
        """Without what the client wrote: this gets into logs."""
        return f"<request {self.id} {self.phase}>"

    @property
    def cancelled(self) -> bool:
        """Whether the worker should give it up."""
        return self.phase in ("cancelled", "failed")


class Registry:
    """The table. An id is taken until `release`."""

    def __init__(self) -> None:
        self._by_id: dict[str, Record] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._by_id.values()))

    def number(self) -> int:
        """The next record's number."""
        self._numbers += 1
        return self._numbers

    def refuse_taken(self, request_id: str) -> None:
        """Failure request_id_in_use for an id that has not been released."""
        if request_id in self._by_id:
            raise Failure(
                "request_id_in_use",
                f"request {request_id!r} is still {self._by_id[request_id].phase}: use another request_id",
                param="request_id",
            )

    def add(self, record: Record) -> None:
        """Reserve the record's id."""
        self.refuse_taken(record.id)
        self._by_id[record.id] = record

    def get(self, request_id: str, key: str) -> Record | None:
        """The record if it is here and belongs to this key."""
        record = self._by_id.get(request_id)
        return record if record is not None and record.request.key == key else None

    def release(self, record: Record) -> None:
        """The final output was written or given up."""
        if self._by_id.get(record.id) is record:
            del self._by_id[record.id]

    def cancel(self, record: Record, cause: CancelCause) -> bool:
        """Decide for cancellation unless something was decided before; True if this call decided it."""
        if record.phase in ENDED:
            return False
        record.phase, record.cause = "cancelled", cause
        return True

    def fail(self, record: Record) -> bool:
        """Decide for failure unless something was decided before."""
        if record.phase in ENDED:
            return False
        record.phase = "failed"
        return True

    def claim(self, record: Record) -> bool:
        """Decide for completion: the writer is about to show the end. True exactly once, and never after a cancel."""
        if record.phase != "completing":
            return False
        record.phase = "claimed"
        return True

    def advance(self, record: Record, phase: Phase) -> bool:
        """Move on unless the request was decided."""
        if record.phase in ENDED:
            return False
        record.phase = phase
        return True
