"""The real engine: answers `protocol.Engine` with a model, its weights and slots. One thread calls it."""

from collections.abc import Sequence as Tokens

import torch
from carousel_kernels import head, sampling
from torch import Tensor

from carousel_server.engine.call import Call
from carousel_server.engine.model import Model
from carousel_server.engine.protocol import (
    EngineError,
    EngineInfo,
    SamplerParams,
    Selected,
    Sequence,
    Snapshot,
    StepStats,
)
from carousel_server.engine.sequence import TorchSequence, TorchSnapshot
from carousel_server.engine.state import Slot, StatePool
from carousel_server.engine.threads import Threads

PREFILL_ROWS = 1024  # rows of one forward pass: bounds the activations
FEW_ROWS = 256  # up to here a prefill uses the threads of a decode step


class TorchEngine:
    """See `protocol.Engine`. Device and types come with the model and the pool."""

    def __init__(
        self,
        model: Model,
        pool: StatePool,
        *,
        valid_tokens: int,
        stop_tokens: frozenset[int],
        threads: Threads | None = None,
    ) -> None:
        self.model, self.pool, self.config = model, pool, model.config
        self.threads = threads or Threads(1, 1)
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

    def prefill(self, seq: Sequence, tokens: Tokens[int]) -> None:
        """Feed prompt rows, any number from 1 up."""
        with Call(seq, TorchSequence) as own:
            if not tokens:
                raise EngineError("prefill needs at least one token")
            slot = self._admit(own, tokens)
            self._use_threads(self.threads.prefill if len(tokens) > FEW_ROWS else self.threads.decode)
            for at in range(0, len(tokens), PREFILL_ROWS):
                part = tokens[at : at + PREFILL_ROWS]
                start = own.length
                streams = self.model.forward(slot, start, len(part), rewindable=False)
                self._keep_streams(own, slot, streams)
                own.length = own.floor = start + len(part)
            own.tokens.extend(tokens)
            slot.logits[(own.length - 1) % self.pool.steps] = self.model.logits(streams[-1:])[0]

    def select(self, seq: Sequence, sampler: SamplerParams) -> Selected:
        """Choose the token that follows the last row; feeds nothing."""
        with Call(seq, TorchSequence) as own:
            slot = _slot(own)
            if own.length == 0:
                raise EngineError("the sequence is empty: prefill before select")
            return self._select(slot.logits[(own.length - 1) % self.pool.steps], sampler)

    def step(self, seq: Sequence, token: int, sampler: SamplerParams, drafts: int) -> list[Selected]:
        """Feed `token` and choose what follows; with drafts, the accepted ones too. A stop token is always the last."""
        with Call(seq, TorchSequence) as own:
            slot = _slot(own)
            self._use_threads(self.threads.decode)
            room = own.capacity - own.length
            proposals: list[int] = []
            if drafts > 0 and own.draftable and sampler.plain_greedy:
                width = own.width.choose(max(0, min(drafts, self.info.max_drafts, room - 1)))
                proposals = self._propose(own, slot, token, width)
            rows = [token, *proposals]
            self._admit(own, rows)
            start = own.length
            streams = self.model.forward(slot, start, len(rows), rewindable=True)
            logits = self.model.logits(streams)
            for i in range(len(rows)):
                slot.logits[(start + i) % self.pool.steps] = logits[i]
            chosen = [self._select(logits[0], sampler)] if not proposals else self._verify(logits, sampler)
            taken = self._accepted(proposals, chosen)
            self._keep_streams(own, slot, streams[:taken])
            own.length = start + taken
            own.floor = max(own.floor, start + len(rows) - self.pool.steps + 1, 1)
            own.tokens.extend(rows[:taken])
            if proposals:
                own.width.observe(len(proposals), taken - 1)
                self.stats.drafts_proposed += len(proposals)
                self.stats.drafts_accepted += taken - 1
            return chosen[:taken]

    def rollback(self, seq: Sequence, length: int) -> None:
        """Take rows back, to any length that `seq.floor` still allows: at most the rows of the last decode steps."""
        with Call(seq, TorchSequence) as own:
            if not own.floor <= length <= own.length:
                raise EngineError(
                    f"cannot go back to {length} rows: states of {own.floor} to {own.length} rows are kept"
                )
            _slot(own)
            own.length = length
            del own.tokens[length:]
            own.drafted = min(own.drafted, max(0, length - 1))

    def suspend(self, seq: Sequence) -> None:
        """Save to host memory, only rows that were not saved before, and free the slot."""
        with Call(seq, TorchSequence) as own:
            slot = _slot(own)
            self._catch_up(own, slot)
            own.saved = self.pool.save(slot.main, own.length, own.saved, own.capacity)
            if slot.draft is not None and own.draftable:
                own.saved_draft = self.pool.save(slot.draft, own.drafted, own.saved_draft, own.capacity)
            own.slot = None
            self._free.append(slot)
            self.stats.saves += 1

    def resume(self, seq: Sequence) -> None:
        """The opposite of suspend; needs a free slot."""
        with Call(seq, TorchSequence) as own:
            if own.live or own.saved is None:
                raise EngineError("resume: the sequence is not suspended")
            slot = own.slot = self._take_slot()
            self.pool.load(slot.main, own.saved)
            if slot.draft is not None and own.saved_draft is not None:
                self.pool.load(slot.draft, own.saved_draft)
            own.floor = own.length
            self.stats.restores += 1

    def snapshot(self, seq: Sequence) -> TorchSnapshot:
        """A host copy of exactly the rows so far; the sequence goes on."""
        with Call(seq, TorchSequence) as own:
            slot = _slot(own)
            self._catch_up(own, slot)
            draft = self.pool.save(slot.draft, own.drafted) if slot.draft is not None and own.draftable else None
            return TorchSnapshot(tuple(own.tokens), self.pool.save(slot.main, own.length), draft)

    def adopt(self, seq: Sequence, snapshot: Snapshot) -> None:
        """Fill an empty live sequence from a snapshot."""
        with Call(seq, TorchSequence) as own:
            slot = _slot(own)
            if not isinstance(snapshot, TorchSnapshot):
                raise EngineError(f"a {type(snapshot).__name__} is not a snapshot of this engine")
            length = len(snapshot.tokens)
            if own.length:
                raise EngineError(f"adopt needs an empty sequence, this one has {own.length} rows")
            if length > own.capacity:
                raise EngineError(f"a snapshot of {length} rows does not fit a capacity of {own.capacity}")
            self.pool.load(slot.main, snapshot.main)
            if slot.draft is not None and snapshot.draft is not None:
                self.pool.load(slot.draft, snapshot.draft)
                own.drafted = snapshot.draft.length
            own.draftable = own.draftable and snapshot.draft is not None
            own.length = own.floor = length
            own.tokens = list(snapshot.tokens)

    def release(self, seq: Sequence) -> None:
        """Forget the sequence in any state."""
        if not isinstance(seq, TorchSequence):
            raise EngineError(f"a {type(seq).__name__} is not a sequence of this engine")
        if seq.slot is not None:
            self._free.append(seq.slot)
        seq.slot = seq.saved = seq.saved_draft = None
        seq.failed = True

    def _use_threads(self, count: int) -> None:
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)

    def _take_slot(self) -> Slot:
        if not self._free:
            raise EngineError(f"all {self.info.slots} state slots are taken: suspend or release a sequence first")
        return self._free.pop()

    def _admit(self, seq: TorchSequence, tokens: Tokens[int]) -> Slot:
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
        """Rows to keep: the fed token, and drafts for as long as they are what the model chose."""
        taken = 1
        for proposal, selected in zip(proposals, chosen, strict=False):
            if proposal != selected.token:
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
            if int(best) in self.info.stop_tokens:
                break  # it would only ever be the pending token, which needs no row
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
