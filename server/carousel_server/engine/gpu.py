"""The GPU engine: answers `protocol.Engine` with slots on the device, captured steps and an expert pool."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import torch
from carousel_kernels.sampling.log_probabilities import MOST
from carousel_kernels.sampling.triton import NONE
from carousel_kernels.step import behind

from carousel_server.engine.call import Call
from carousel_server.engine.config import ModelConfig
from carousel_server.engine.gpu_forward import Forward, Table
from carousel_server.engine.gpu_prefill import Prefill, chunks
from carousel_server.engine.gpu_state import SlotState
from carousel_server.engine.graphs import Outcome, Steps
from carousel_server.engine.host_memory import memory_for
from carousel_server.engine.mtp import DraftCost, DraftWidth
from carousel_server.engine.pool import ExpertPool
from carousel_server.engine.protocol import (
    EngineError,
    EngineInfo,
    SamplerParams,
    Selected,
    Sequence,
    Snapshot,
    StepStats,
)
from carousel_server.engine.saved import Saved, SavedStates
from carousel_server.engine.weights import Weights

# one H200, real shapes (docs/performance.md): steps of 4.27, 6.15 and 7.47 ms with 0, 1 and 2 drafts. So one draft pays
# when 44 of 100 are accepted
COST = DraftCost(draft=0.06, row=0.25, first=0.13)


@dataclass(eq=False)
class GpuSequence:
    """Live while `slot` is set, suspended while only `saved` is. `waiting` rows have not been given to the draft head;
    the slot keeps their streams."""

    capacity: int
    slot: int | None
    length: int = 0
    waiting: int = 0
    tokens: list[int] = field(default_factory=list)
    width: DraftWidth = field(default_factory=lambda: DraftWidth(COST))
    saved: Saved | None = None
    failed: bool = False

    @property
    def live(self) -> bool:
        """In a slot, not in host memory."""
        return self.slot is not None


@dataclass(frozen=True)
class GpuSnapshot:
    """State, logits and waiting streams after `tokens`, in host memory; never changed."""

    tokens: tuple[int, ...]
    saved: Saved
    waiting: int

    @property
    def nbytes(self) -> int:
        """Host bytes."""
        return self.saved.nbytes


class GpuEngine:
    """See `protocol.Engine`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        state: SlotState,
        pool: ExpertPool,
        tables: dict[int, Table],
        *,
        valid_tokens: int,
        stop_tokens: frozenset[int],
        drafts: int,
        exact: bool,
        prefill_rows: int = 1024,
        graphs: bool = True,
        saved_bytes: int = 0,
    ) -> None:
        """saved_bytes: host memory that is made ready for suspended sequences and snapshots."""
        self.config, self.state, self.pool = config, state, pool
        drafts = drafts if state.draft is not None else 0
        self.forward = Forward(config, weights, state, pool, tables)
        with torch.inference_mode():
            self.steps = Steps(self.forward, valid=valid_tokens, stops=stop_tokens, drafts=drafts, graphs=graphs)
        self.prefill_rows = prefill_rows
        self._prefill = Prefill(self.forward, exact=exact)
        slots = state.tokens.shape[0]
        self.saves = SavedStates(state, memory_for(state.tokens.device), saved_bytes)
        fixed, token = self.saves.layout.saved_bytes()
        self.info = EngineInfo(
            vocab_size=config.vocab,
            valid_tokens=valid_tokens,
            context_tokens=state.capacity,
            slots=slots,
            max_drafts=drafts,
            stop_tokens=stop_tokens,
            fixed_state_bytes=fixed,
            token_state_bytes=token,
        )
        self.stats = StepStats()
        self._free = list(reversed(range(slots)))

    def create(self, capacity: int) -> GpuSequence:
        """An empty live sequence of at most `capacity` rows. Nothing is cleared: what lies before position 0 is not
        read."""
        if not 0 < capacity <= self.info.context_tokens:
            raise EngineError(f"capacity {capacity} is not between 1 and the context of {self.info.context_tokens}")
        seq = GpuSequence(capacity, self._take_slot())
        with Call(seq, GpuSequence) as own:
            self.state.applied[self._slot(own)] = 0
        return seq

    def idle(self) -> None:
        """Send what waits in staging. EngineError, fatal, when what goes on beside the calls has failed."""
        self.pool.check()
        with torch.inference_mode():
            self.saves.send()

    def free_slots(self) -> int:
        """Slots that create or resume can take."""
        return len(self._free)

    def prefill(self, seq: Sequence, tokens: Tokens[int]) -> None:
        """Feed prompt rows, any number from 1 up."""
        with Call(seq, GpuSequence) as own:
            if not tokens:
                raise EngineError("prefill needs at least one token")
            slot = self._admit(own, tokens)
            end = own.length + len(tokens)
            self.state.tokens[slot, own.length : end] = torch.tensor(tokens, dtype=torch.int64)
            for start, rows in chunks(own.length, len(tokens), self.prefill_rows):
                self._prefill(slot, start, rows, own.waiting)
                own.waiting = 1
                own.length = start + rows
            own.tokens.extend(tokens)

    def select(self, seq: Sequence, sampler: SamplerParams) -> Selected:
        """Choose the token that follows the last row; feeds nothing."""
        with Call(seq, GpuSequence) as own:
            if own.length == 0:
                raise EngineError("the sequence is empty: prefill before select")
            slot = self._slot(own)
            self.saves.send()
            _rateable(sampler)
            outcome = self.steps.select(slot, own.length - 1, sampler)
            _check(outcome.chosen[0], own.length - 1, sampler)
            return _selected(outcome, 0)

    def step(self, seq: Sequence, token: int, sampler: SamplerParams, drafts: int) -> list[Selected]:
        """Feed `token` and choose what follows; with drafts, the accepted ones too. A stop token is always the last."""
        with Call(seq, GpuSequence) as own:
            slot = self._admit(own, (token,))
            _rateable(sampler)
            self.pool.complete()
            width = 0
            if drafts > 0 and own.length > 0 and sampler.plain_greedy:
                width = own.width.choose(max(0, min(drafts, self.info.max_drafts, own.capacity - own.length - 1)))
            start = own.length
            if sampler.plain_greedy:
                top = sampler.top_logprobs
                outcome = self.steps(slot, start, token, waiting=own.waiting, drafts=width, top=top)
            else:
                outcome = self.steps.sample(slot, start, token, sampler, waiting=own.waiting)
            taken = outcome.taken
            least = min(outcome.chosen[:taken])
            own.failed = least < 0
            _check(least, start, sampler)
            own.length = start + taken
            own.tokens += [token, *outcome.chosen[: taken - 1]]
            if width:
                own.width.observe(width, taken - 1)
                self.stats.drafts_proposed += width
                self.stats.drafts_accepted += taken - 1
                own.waiting = taken
            else:
                own.waiting = behind(own.waiting, self.steps.room) + 1
            return [_selected(outcome, i) for i in range(taken)]

    def suspend(self, seq: Sequence) -> None:
        """Save to host memory, only rows that were not saved before, and free the slot."""
        with Call(seq, GpuSequence) as own:
            slot = self._slot(own)
            own.saved = self.saves.save(slot, own.length, own.saved)
            own.slot = None
            self._free.append(slot)
            self.stats.saves += 1

    def resume(self, seq: Sequence) -> None:
        """The opposite of suspend; needs a free slot."""
        with Call(seq, GpuSequence) as own:
            if own.live or own.saved is None:
                raise EngineError("resume: the sequence is not suspended")
            own.slot = self._take_slot()
            self.saves.load(own.slot, own.saved)
            self.stats.restores += 1

    def snapshot(self, seq: Sequence) -> GpuSnapshot:
        """A host copy of exactly the rows so far; the sequence goes on."""
        with Call(seq, GpuSequence) as own:
            saved = self.saves.save(self._slot(own), own.length)
            return GpuSnapshot(tuple(own.tokens), saved, own.waiting)

    def adopt(self, seq: Sequence, snapshot: Snapshot) -> None:
        """Fill an empty live sequence from a snapshot."""
        with Call(seq, GpuSequence) as own:
            slot = self._slot(own)
            if not isinstance(snapshot, GpuSnapshot):
                raise EngineError(f"a {type(snapshot).__name__} is not a snapshot of this engine")
            length = len(snapshot.tokens)
            if own.length:
                raise EngineError(f"adopt needs an empty sequence, this one has {own.length} rows")
            if length > own.capacity:
                raise EngineError(f"a snapshot of {length} rows does not fit a capacity of {own.capacity}")
            self.saves.load(slot, snapshot.saved)
            own.length, own.tokens, own.waiting = length, list(snapshot.tokens), snapshot.waiting

    def release(self, seq: Sequence) -> None:
        """Forget the sequence in any state."""
        if not isinstance(seq, GpuSequence):
            raise EngineError(f"a {type(seq).__name__} is not a sequence of this engine")
        if seq.slot is not None:
            self._free.append(seq.slot)
        seq.slot = seq.saved = None
        seq.failed = True

    def _take_slot(self) -> int:
        if not self._free:
            raise EngineError(f"all {self.info.slots} state slots are taken: suspend or release a sequence first")
        return self._free.pop()

    def _slot(self, seq: GpuSequence) -> int:
        """Where it lives, its last copy done for whatever is started from now on."""
        if seq.slot is None:
            raise EngineError("the sequence is not live: resume it first")
        self.saves.join(seq.slot)
        return seq.slot

    def _admit(self, seq: GpuSequence, tokens: Tokens[int]) -> int:
        slot = self._slot(seq)
        self.saves.send()
        if seq.length + len(tokens) > seq.capacity:
            raise EngineError(f"{len(tokens)} more rows after {seq.length} exceed the capacity of {seq.capacity}")
        if min(tokens) < 0 or max(tokens) >= self.config.vocab:
            raise EngineError(f"token ids {min(tokens)} to {max(tokens)} are outside 0 to {self.config.vocab - 1}")
        return slot


def _selected(outcome: Outcome, row: int) -> Selected:
    if not outcome.rated:
        return Selected(outcome.chosen[row])
    return Selected(outcome.chosen[row], *outcome.rated[row])


def _rateable(sampler: SamplerParams) -> None:
    if sampler.top_logprobs is not None and sampler.top_logprobs > MOST:
        raise EngineError(f"{sampler.top_logprobs} log probabilities were asked for, at most {MOST} are given")


def _check(token: int, row: int, sampler: SamplerParams) -> None:
    """Raises EngineError for what stands instead of a token."""
    if token == NONE:
        raise EngineError(
            f"every logit of row {row} is minus infinity" if sampler.mask is None else "the mask allows no token"
        )
    if token < 0:
        raise EngineError(f"the logits of row {row} are not numbers: the checkpoint or the device is faulty")
