"""What the test engines share: sequences that are their tokens, in slots that are counted. Every misuse is an error.

A sequence's state is its tokens and a checksum of them, so a state that was mixed up or lost shows in the output.
"""

import zlib
from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from carousel_server.engine.protocol import EngineError, EngineInfo, SamplerParams, Selected, StepStats

TOKEN_BYTES = 4


@dataclass(eq=False)
class HostSequence:
    """Rows, and what a subclass's engine keeps with them."""

    capacity: int
    tokens: list[int] = field(default_factory=list)
    checksum: int = 0
    live: bool = True
    released: bool = False
    script: list[int] | None = None  # scripted only: what follows the prompt
    at: int = 0

    @property
    def length(self) -> int:
        """Rows fed so far."""
        return len(self.tokens)

    def feed(self, tokens: Tokens[int]) -> None:
        """Grow by these rows."""
        if self.length + len(tokens) > self.capacity:
            raise EngineError(f"{self.length} rows and {len(tokens)} more exceed the capacity of {self.capacity}")
        self.tokens.extend(tokens)
        self.checksum = zlib.crc32(array("q", tokens).tobytes(), self.checksum)


@dataclass(frozen=True)
class HostSnapshot:
    """The rows of a prefix."""

    tokens: tuple[int, ...]
    fixed_bytes: int

    @property
    def nbytes(self) -> int:
        """As the engine's numbers have it."""
        return self.fixed_bytes + TOKEN_BYTES * len(self.tokens)


class HostEngine:
    """Slots, saves and restores. A subclass says which token follows."""

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self.stats = StepStats()
        self._live = 0
        self.sequences = 0  # made and not released

    def create(self, capacity: int) -> HostSequence:
        """An empty live sequence."""
        if capacity > self.info.context_tokens:
            raise EngineError(f"a capacity of {capacity} exceeds the context of {self.info.context_tokens}")
        self._take_slot()
        self.sequences += 1
        return HostSequence(capacity)

    def free_slots(self) -> int:
        """Slots that hold nothing."""
        return self.info.slots - self._live

    def prefill(self, seq: HostSequence, tokens: Tokens[int]) -> None:
        """Feed prompt rows."""
        self._usable(seq)
        seq.feed(tokens)

    def select(self, seq: HostSequence, sampler: SamplerParams) -> Selected:
        """The token after the last row."""
        self._usable(seq)
        if not seq.tokens:
            raise EngineError("nothing follows an empty sequence")
        return self._choose(seq, sampler)

    def step(self, seq: HostSequence, token: int, sampler: SamplerParams, drafts: int) -> list[Selected]:
        """Feed the pending token; with drafts, further rows as if every draft had been accepted."""
        self._usable(seq)
        if drafts and not sampler.plain_greedy:
            raise EngineError("drafts are for plain greedy selection only")
        self._feed_one(seq, token)
        chosen = [self._choose(seq, sampler)]
        self.stats.drafts_proposed += drafts
        while len(chosen) <= drafts and seq.length < seq.capacity and chosen[-1].token not in self.info.stop_tokens:
            self._feed_one(seq, chosen[-1].token)
            chosen.append(self._choose(seq, sampler))
            self.stats.drafts_accepted += 1
        return chosen

    def suspend(self, seq: HostSequence) -> None:
        """Give the slot back."""
        self._usable(seq)
        seq.live = False
        self._live -= 1
        self.stats.saves += 1

    def resume(self, seq: HostSequence) -> None:
        """Take a slot again."""
        if seq.released or seq.live:
            raise EngineError("only a suspended sequence can be resumed")
        self._take_slot()
        seq.live = True
        self.stats.restores += 1

    def snapshot(self, seq: HostSequence) -> HostSnapshot:
        """The rows so far."""
        self._usable(seq)
        return HostSnapshot(tuple(seq.tokens), self.info.fixed_state_bytes)

    def adopt(self, seq: HostSequence, snapshot: HostSnapshot) -> None:
        """Begin with a prefix."""
        self._usable(seq)
        if seq.tokens:
            raise EngineError("only an empty sequence can adopt a snapshot")
        seq.feed(snapshot.tokens)

    def release(self, seq: HostSequence) -> None:
        """Forget it."""
        if seq.released:
            return
        seq.released = True
        self.sequences -= 1
        if seq.live:
            self._live -= 1

    def _choose(self, seq: HostSequence, sampler: SamplerParams) -> Selected:
        raise EngineError("this engine chooses nothing")

    def _feed_one(self, seq: HostSequence, token: int) -> None:
        seq.feed((token,))
        seq.at += 1

    def _take_slot(self) -> None:
        if self.free_slots() <= 0:
            raise EngineError(f"all {self.info.slots} slots are taken")
        self._live += 1

    def _usable(self, seq: HostSequence) -> None:
        if seq.released or not seq.live:
            raise EngineError("the sequence is not live")
