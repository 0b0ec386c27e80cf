"""A request while the worker runs it, and the stages that its reply passes. Pure data; worker.py moves it on."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from carousel_server.engine.protocol import Selected, Sequence
from carousel_server.registry import Record
from carousel_server.sampling import Sampler
from carousel_server.turn import CallDelta, FinishReason, Message, PreparedTurn, TextDelta, TokenLogprob


class ReplyStage(Protocol):
    """From tokens to text, stop strings and calls: reply.Reply."""

    finish: FinishReason | None

    def feed(self, selected: Selected) -> Collection[TextDelta | CallDelta]: ...

    def close(self, reason: Any) -> Collection[TextDelta | CallDelta]: ...

    @property
    def message(self) -> Message: ...

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]: ...

    @property
    def raw_bytes(self) -> int: ...


ReplyMaker = Callable[[PreparedTurn, int], ReplyStage]


@dataclass(eq=False)
class Job:
    """A request that the worker runs."""

    record: Record
    prepared: PreparedTurn
    sampler: Sampler
    reply: ReplyStage
    drafts: int  # the most that a step may verify; the engine adapts below it
    seq: Sequence | None = None
    position: int = 0  # prompt rows fed
    matcher: Any = None  # grammar.Matcher of a constrained reply
    pending: int | None = None  # the selected token that was not fed yet
    output: list[int] = field(default_factory=list)
    begun: bool = False  # the writer of a JSON reply knows that there is output
    finish: FinishReason | None = None

    @property
    def prefilling(self) -> bool:
        """Prompt rows are missing, or their last row's selection."""
        return self.pending is None
