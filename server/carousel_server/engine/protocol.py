"""What the worker asks of an engine. The real engine, and the scripted and uniform test engines, answer it.

Called from one thread only. An engine raises EngineError; the sequence it was working on is then unusable and must
be released, every other sequence is as it was.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Protocol

import torch


class EngineError(Exception):
    """A step failed. `fatal` means that the device is lost and the process must end."""

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


@dataclass(frozen=True)
class EngineInfo:
    """Numbers that do not change after the start."""

    vocab_size: int  # width of the logits
    valid_tokens: int  # ids >= this are never sampled
    context_tokens: int  # longest sequence
    slots: int  # sequences that can be live at once
    max_drafts: int  # 0 without an MTP head
    stop_tokens: frozenset[int]  # generation ends after one of these
    fixed_state_bytes: int  # host bytes of a saved sequence of 0 tokens
    token_state_bytes: int  # and of each token


@dataclass(frozen=True)
class SamplerParams:
    """One selection. Order: mask, bias, penalties, temperature, top-k, top-p, min-p, then the draw by `uniform`."""

    temperature: float = 0.0  # 0: argmax, `uniform` unused
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: float = 0.0  # in [0, 1)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    # [vocab] int32, needed by penalties: occurrences in prompt and output, which are the rows fed and the token of this
    # step; an engine may count those itself
    counts: torch.Tensor | None = None
    bias: torch.Tensor | None = None  # [vocab] float32
    mask: torch.Tensor | None = None  # [vocab] bool, True = allowed
    top_logprobs: int | None = None  # None: no logprobs at all

    @property
    def plain_greedy(self) -> bool:
        """Argmax of the raw logits over the valid ids: the case in which drafts may be verified."""
        return (
            self.temperature == 0.0
            and self.presence_penalty == 0.0
            and self.frequency_penalty == 0.0
            and self.repetition_penalty == 1.0
            and self.bias is None
            and self.mask is None
        )


@dataclass(frozen=True)
class Selected:
    """A chosen token; logprobs are the log-softmax of the raw logits."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class StepStats:
    """Counts of the engine, monotonic, read by /metrics; and how far it is where it works before all is loaded."""

    drafts_proposed: int = 0
    drafts_accepted: int = 0
    saves: int = 0
    restores: int = 0
    extra: dict[str, float] = field(default_factory=dict)
    loaded: float = 1.0  # 0 .. 1
    loading: str = ""  # what, below 1


class Sequence(Protocol):
    """One sequence. Owned by the engine that made it."""

    @property
    def length(self) -> int:
        """Rows fed so far; the pending token is not one of them."""

    @property
    def capacity(self) -> int:
        """Rows it may grow to."""

    @property
    def live(self) -> bool:
        """In a slot, not in host memory."""


class Snapshot(Protocol):
    """An immutable host copy of a sequence's state after `length` rows, with the logits of the last row."""

    @property
    def tokens(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...


class Engine(Protocol):
    """See the module's docstring for threads and errors."""

    info: EngineInfo
    stats: StepStats

    def create(self, capacity: int) -> Sequence:
        """An empty live sequence; needs a free slot. Raises EngineError when none is free."""

    def free_slots(self) -> int: ...

    def prefill(self, seq: Sequence, tokens: Tokens[int]) -> None:
        """Feed prompt rows; the logits of the last row are kept with the sequence."""

    def select(self, seq: Sequence, sampler: SamplerParams) -> Selected:
        """Choose the token that follows the last row, from its kept logits. Feeds nothing."""

    def step(self, seq: Sequence, token: int, sampler: SamplerParams, drafts: int) -> list[Selected]:
        """Feed `token`, the pending selection, and choose what follows.

        With drafts > 0 (only for sampler.plain_greedy) up to `drafts` further rows are proposed and verified in the
        same call. Returns r >= 1 selections; the sequence grew by exactly r rows: `token` and the first r - 1
        selections are fed, the last selection is the new pending token. Never grows beyond the capacity.
        """

    def suspend(self, seq: Sequence) -> None:
        """Save to host memory and free the slot. Bit-exact."""

    def resume(self, seq: Sequence) -> None:
        """The opposite of suspend; needs a free slot."""

    def snapshot(self, seq: Sequence) -> Snapshot:
        """A host copy for the prefix cache; the sequence goes on."""

    def adopt(self, seq: Sequence, snapshot: Snapshot) -> None:
        """Fill an empty live sequence from a snapshot, logits of the last row included."""

    def release(self, seq: Sequence) -> None:
        """Forget the sequence in any state. Idempotent."""
