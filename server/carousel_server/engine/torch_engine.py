"""The real engine: answers `protocol.Engine` with a model, its weights and slots. One thread calls it."""

import functools
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

import torch
from carousel_kernels import head, sampling
from torch import Tensor

from carousel_server.engine.model import Model
from carousel_server.engine.protocol import EngineError, EngineInfo, SamplerParams, Selected, StepStats
from carousel_server.engine.sequence import TorchSequence, TorchSnapshot
from carousel_server.engine.state import Slot, StatePool

P = ParamSpec("P")
R = TypeVar("R")
PREFILL_ROWS = 1024  # rows of one forward pass: bounds the activations


def _guarded(
    method: Callable[Concatenate["TorchEngine", TorchSequence, P], R],
) -> Callable[Concatenate["TorchEngine", TorchSequence, P], R]:
    """Inference mode, and torch's failures as EngineError with the sequence marked unusable."""

    @functools.wraps(method)
    def run(self: "TorchEngine", seq: TorchSequence, *args: P.args, **kwargs: P.kwargs) -> R:
        if seq.failed:
            raise EngineError("the sequence failed in an earlier call; release it")
        try:
            with torch.inference_mode():
                return method(self, seq, *args, **kwargs)
        except EngineError:
            raise
        except RuntimeError as error:
            seq.failed = True
            raise EngineError(f"{method.__name__} failed: {error}", fatal="CUDA error" in str(error)) from error

    return run


class TorchEngine:
    """See `protocol.Engine`. Device and types come with the model and the pool."""

    def __init__(self, model: Model, pool: StatePool, *, valid_tokens: int, stop_tokens: frozenset[int]) -> None:
        self.model, self.pool, self.config = model, pool, model.config
        fixed, token = pool.saved_bytes()
        self.info = EngineInfo(
            vocab_size=self.config.vocab,
            valid_tokens=valid_tokens,
            context_tokens=pool.context_tokens,
            slots=len(pool.slots),
            max_drafts=pool.steps - 1,
            stop_tokens=stop_tokens,
            fixed_state_bytes=fixed,
            token_state_bytes=token,
        )
        self.stats = StepStats()
        self._free = list(reversed(pool.slots))

    def create(self, capacity: int) -> TorchSequence:
        """An empty live sequence of at most `capacity` rows."""
        if not 0 < capacity <= self.info.context_tokens:
            raise EngineError(f"capacity {capacity} is not between 1 and the context of {self.info.context_tokens}")
        seq = TorchSequence(capacity, self._take_slot())
        with torch.inference_mode():
            _slot(seq).clear()
        seq.draftable = self.info.max_drafts > 0
        return seq

    def free_slots(self) -> int:
        """Slots that create or resume can take."""
        return len(self._free)

    @_guarded
    def prefill(self, seq: TorchSequence, tokens: Sequence[int]) -> None:
        """Feed prompt rows, any number from 1 up."""
        if not tokens:
            raise EngineError("prefill needs at least one token")
        slot = self._admit(seq, tokens)
        for at in range(0, len(tokens), PREFILL_ROWS):
            part = tokens[at : at + PREFILL_ROWS]
            start = seq.length
            streams = self.model.forward(slot, start, len(part), rewindable=False)
            self._keep_streams(seq, slot, streams)
            seq.length = seq.floor = start + len(part)
        seq.tokens.extend(tokens)
        slot.logits[(seq.length - 1) % self.pool.steps] = self.model.logits(streams[-1:])[0]

    @_guarded
    def select(self, seq: TorchSequence, sampler: SamplerParams) -> Selected:
        """Choose the token that follows the last row; feeds nothing."""
        slot = _slot(seq)
        if seq.length == 0:
            raise EngineError("the sequence is empty: prefill before select")
        return self._select(slot.logits[(seq.length - 1) % self.pool.steps], sampler)

    @_guarded
    def step(self, seq: TorchSequence, token: int, sampler: SamplerParams, drafts: int) -> list[Selected]:
        """Feed `token` and choose what follows; with drafts, the accepted ones too. A stop token is always the last."""
        slot = _slot(seq)
        room = seq.capacity - seq.length
        proposals: list[int] = []
        if drafts > 0 and seq.draftable and sampler.plain_greedy:
            proposals = self._propose(seq, slot, token, seq.width.choose(min(drafts, self.info.max_drafts, room - 1)))
        rows = [token, *proposals]
        self._admit(seq, rows)
        start = seq.length
        streams = self.model.forward(slot, start, len(rows), rewindable=True)
        logits = self.model.logits(streams)
        for i in range(len(rows)):
            slot.logits[(start + i) % self.pool.steps] = logits[i]
        chosen = [self._select(logits[0], sampler)] if not proposals else self._verify(logits, sampler)
        taken = self._accepted(proposals, chosen)
        self._keep_streams(seq, slot, streams[:taken])
        seq.length = start + taken
        seq.floor = max(seq.floor, start + len(rows) - self.pool.steps + 1, 1)
        seq.tokens.extend(rows[:taken])
        if proposals:
            seq.width.observe(len(proposals), taken - 1)
            self.stats.drafts_proposed += len(proposals)
            self.stats.drafts_accepted += taken - 1
        return chosen[:taken]

    @_guarded
    def rollback(self, seq: TorchSequence, length: int) -> None:
        """Take rows back, to any length that `seq.floor` still allows: at most the rows of the last decode steps."""
        if not seq.floor <= length <= seq.length:
            raise EngineError(f"cannot go back to {length} rows: states of {seq.floor} to {seq.length} rows are kept")
        _slot(seq)
        seq.length = length
        del seq.tokens[length:]
        seq.drafted = min(seq.drafted, max(0, length - 1))

    @_guarded
    def suspend(self, seq: TorchSequence) -> None:
        """Save to host memory, only rows that were not saved before, and free the slot."""
        slot = _slot(seq)
        self._catch_up(seq, slot)
        seq.saved = self.pool.save(slot.main, seq.length, seq.saved, seq.capacity)
        if slot.draft is not None and seq.draftable:
            seq.saved_draft = self.pool.save(slot.draft, seq.drafted, seq.saved_draft, seq.capacity)
        seq.slot = None
        self._free.append(slot)
        self.stats.saves += 1

    @_guarded
    def resume(self, seq: TorchSequence) -> None:
        """The opposite of suspend; needs a free slot."""
        if seq.live or seq.saved is None:
            raise EngineError("resume: the sequence is not suspended")
        slot = seq.slot = self._take_slot()
        self.pool.load(slot.main, seq.saved)
        if slot.draft is not None and seq.saved_draft is not None:
            self.pool.load(slot.draft, seq.saved_draft)
        seq.floor = seq.length
        self.stats.restores += 1

    @_guarded
    def snapshot(self, seq: TorchSequence) -> TorchSnapshot:
        """A host copy of exactly the rows so far; the sequence goes on."""
        slot = _slot(seq)
        self._catch_up(seq, slot)
        draft = self.pool.save(slot.draft, seq.drafted) if slot.draft is not None and seq.draftable else None
        return TorchSnapshot(tuple(seq.tokens), self.pool.save(slot.main, seq.length), draft)

    @_guarded
    def adopt(self, seq: TorchSequence, snapshot: TorchSnapshot) -> None:
        """Fill an empty live sequence from a snapshot."""
        slot = _slot(seq)
        length = len(snapshot.tokens)
        if seq.length:
            raise EngineError(f"adopt needs an empty sequence, this one has {seq.length} rows")
        if length > seq.capacity:
            raise EngineError(f"a snapshot of {length} rows does not fit a capacity of {seq.capacity}")
        self.pool.load(slot.main, snapshot.main)
        if slot.draft is not None and snapshot.draft is not None:
            self.pool.load(slot.draft, snapshot.draft)
            seq.drafted = snapshot.draft.length
        seq.draftable = seq.draftable and snapshot.draft is not None
        seq.length = seq.floor = length
        seq.tokens = list(snapshot.tokens)

    def release(self, seq: TorchSequence) -> None:
        """Forget the sequence in any state."""
        if seq.slot is not None:
            self._free.append(seq.slot)
        seq.slot = seq.saved = seq.saved_draft = None
        seq.failed = True

    def _take_slot(self) -> Slot:
        if not self._free:
            raise EngineError(f"all {self.info.slots} state slots are taken: suspend or release a sequence first")
        return self._free.pop()

    def _admit(self, seq: TorchSequence, tokens: Sequence[int]) -> Slot:
        """Check room and ids, and write the tokens behind the last row."""
        slot, end = _slot(seq), seq.length + len(tokens)
        if end > seq.capacity:
            raise EngineError(f"{len(tokens)} more rows after {seq.length} exceed the capacity of {seq.capacity}")
        if min(tokens) < 0 or max(tokens) >= self.config.vocab:
            raise EngineError(f"token ids {min(tokens)} to {max(tokens)} are outside 0 to {self.config.vocab - 1}")
        slot.tokens[seq.length : end] = torch.tensor(tokens, dtype=torch.int64)
        return slot

    def _select(self, logits: Tensor, sampler: SamplerParams) -> Selected:
        valid = self.info.valid_tokens
        if sampler.plain_greedy:
            token = int(head.best(logits[None], valid))
        else:
            adjusted = sampling.adjust(
                logits,
                valid,
                mask=sampler.mask,
                bias=sampler.bias,
                counts=sampler.counts,
                repetition=sampler.repetition_penalty,
                frequency=sampler.frequency_penalty,
                presence=sampler.presence_penalty,
            )
            if sampler.mask is not None and not bool(sampler.mask[:valid].any()):
                raise EngineError("the mask allows no token")
            token = int(
                sampling.choose(
                    adjusted,
                    temperature=sampler.temperature,
                    top_k=sampler.top_k,
                    top_p=sampler.top_p,
                    min_p=sampler.min_p,
                    uniform=sampler.uniform,
                )
            )
        return self._with_logprobs(token, logits, sampler)

    def _verify(self, logits: Tensor, sampler: SamplerParams) -> list[Selected]:
        best: list[int] = head.best(logits, self.info.valid_tokens).tolist()
        return [self._with_logprobs(token, row, sampler) for token, row in zip(best, logits, strict=True)]

    def _with_logprobs(self, token: int, logits: Tensor, sampler: SamplerParams) -> Selected:
        if sampler.top_logprobs is None:
            return Selected(token)
        logprob, top = sampling.logprobs(logits, self.info.valid_tokens, token, sampler.top_logprobs)
        return Selected(token, logprob, tuple(top))

    def _accepted(self, proposals: list[int], chosen: list[Selected]) -> int:
        """Rows to keep: the fed token, and drafts as long as they are what the model chose and do not end the text."""
        taken = 1
        for proposal, selected in zip(proposals, chosen, strict=False):
            if proposal != selected.token or proposal in self.info.stop_tokens:
                break
            taken += 1
        return taken

    # The draft head's rows: row t needs the model's streams of row t and the token t + 1, so the last row always waits.

    def _keep_streams(self, seq: TorchSequence, slot: Slot, streams: Tensor) -> None:
        """Keep the streams of the rows behind seq.length until the draft head has taken them."""
        if not (slot.draft is not None and seq.draftable):
            return
        window, rows = slot.streams.shape[0], streams.shape[0]
        if rows + seq.length - seq.drafted > window:
            self._catch_up(seq, slot)  # rows up to the last; that one waits for this call's first token
            if rows > 1:
                self._feed_long(seq, slot, streams)
        for i in range(max(0, rows - window), rows):
            slot.streams[(seq.length + i) % window] = streams[i]

    def _feed_long(self, seq: TorchSequence, slot: Slot, streams: Tensor) -> None:
        """Give a long run of rows to the draft head at once, without keeping their streams; the last row waits."""
        start, rows = seq.length, streams.shape[0]
        if start > seq.drafted:
            before = slot.streams[(start - 1) % slot.streams.shape[0]][None]
            streams = torch.cat([before, streams])
        following = slot.tokens[seq.drafted + 1 : start + rows]
        self.model.draft_cache(slot, following, streams[:-1], seq.drafted)
        seq.drafted = start + rows - 1

    def _catch_up(self, seq: TorchSequence, slot: Slot) -> None:
        """Feed the draft head every row whose following token is known."""
        rows = seq.length - 1 - seq.drafted
        if slot.draft is None or not seq.draftable or rows <= 0:
            return
        hidden = self._streams(slot, seq.drafted, rows)
        self.model.draft_cache(slot, slot.tokens[seq.drafted + 1 : seq.length], hidden, seq.drafted)
        seq.drafted = seq.length - 1

    def _propose(self, seq: TorchSequence, slot: Slot, token: int, width: int) -> list[int]:
        """Draft `width` tokens to follow `token`, which itself is not fed yet."""
        if width <= 0 or seq.length == 0:
            return []
        start, rows = seq.drafted, seq.length - seq.drafted
        slot.tokens[seq.length] = token
        following, hidden = slot.tokens[start + 1 : seq.length + 1], self._streams(slot, start, rows)
        if rows > self.pool.steps:
            self.model.draft_cache(slot, following[:-1], hidden[:-1], start)
            following, hidden, start, rows = following[-1:], hidden[-1:], seq.length - 1, 1
        streams = self.model.draft(slot, following, hidden, start)[-1:]
        seq.drafted = seq.length
        out: list[int] = []
        for i in range(width):
            best = head.best(self.model.draft_logits(streams), self.info.valid_tokens)
            out.append(int(best))
            if i + 1 < width:
                streams = self.model.draft(slot, best, streams, seq.length + i)
        return out

    def _streams(self, slot: Slot, first: int, rows: int) -> Tensor:
        at = torch.arange(first, first + rows, device=self.pool.device).remainder_(slot.streams.shape[0])
        return slot.streams.index_select(0, at)


def _slot(seq: TorchSequence) -> Slot:
    if seq.slot is None:
        raise EngineError("the sequence is not live: resume it first")
    return seq.slot
