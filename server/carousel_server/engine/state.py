"""Everything of a sequence, in slots that are allocated once at the largest size.

Two kinds of storage, and only these: rows that grow with the sequence (tokens, keys, values, index keys), and rings
that hold the last rows by position modulo the ring's size (convolutions, raw index keys, DeltaNet states, logits,
streams). Both are addressed by position, so taking rows back is setting a length, and nothing is copied.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from carousel_server.allocations import PENDING
from carousel_server.engine.config import ModelConfig


@dataclass(frozen=True)
class Grown:
    """Rows that grow: `rows[..., i, :]` along `dim` belongs to tokens i * per .. (i + 1) * per - 1."""

    rows: Tensor
    dim: int
    per: int = 1

    def upto(self, length: int, first: int = 0) -> Tensor:
        """The rows of complete groups in tokens first .. length - 1."""
        return self.rows.narrow(self.dim, first // self.per, length // self.per - first // self.per)


@dataclass(frozen=True)
class Ring:
    """The row of position p at p % W; a saved sequence needs the last `kept`. Before position 0 all is zero."""

    rows: Tensor  # [W, ...]
    kept: int

    @cached_property
    def each(self) -> tuple[Tensor, ...]:
        """The rows one by one; a view costs as much as a small operation."""
        return self.rows.unbind(0)

    def places(self, length: int) -> Tensor:
        """Where the last `kept` rows of a sequence of `length` are, oldest first."""
        return torch.arange(length - self.kept, length, device=self.rows.device).remainder_(self.rows.shape[0])


@dataclass(frozen=True)
class DeltaState:
    """One DeltaNet layer."""

    conv: Ring  # [W, channels]
    states: Ring  # [R, h_v, dk, dv]


@dataclass(frozen=True)
class AttentionState:
    """One attention layer."""

    keys: Grown  # [h_kv, capacity, d]
    values: Grown  # [h_kv, capacity, d]
    index_keys: Grown  # [capacity / ratio, d_i]
    tail: Ring  # [W, d_i], raw index keys


@dataclass(frozen=True)
class Part:
    """What shares one length: the model, or its draft head."""

    layers: tuple[DeltaState | AttentionState, ...]
    grown: tuple[Grown, ...]
    rings: tuple[Ring, ...]

    def clear(self) -> None:
        """As before position 0."""
        for ring in self.rings:
            ring.rows.zero_()


@dataclass(frozen=True)
class Slot:
    """The state of one live sequence."""

    index: int
    tokens: Tensor  # [capacity] int64
    main: Part
    ngram: dict[int, Ring]  # layer -> [W, n * H], its convolution
    logits: Tensor  # [R, V] float32, a ring
    streams: Tensor  # [PENDING + R, n, H], a ring: what the last layer left, for the draft head
    draft: Part | None

    def clear(self) -> None:
        """As before position 0."""
        self.main.clear()
        if self.draft is not None:
            self.draft.clear()


@dataclass
class SavedPart:
    """A part in host memory. `rows` of a part that may grow hold `capacity` tokens, of which `length` are filled."""

    length: int
    grown: list[Tensor] = field(default_factory=list)
    rings: list[Tensor] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Host bytes."""
        return sum(t.numel() * t.element_size() for t in (*self.grown, *self.rings))


class StatePool:
    """Allocates the slots and moves their contents to host memory and back, bit for bit."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        slots: int,
        capacity: int,
        drafts: int,
        device: torch.device,
        cache_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config, self.device, self.cache_dtype = config, device, cache_dtype
        self.steps = drafts + 1  # rows of one decode step
        self.context_tokens = capacity
        self.capacity = -(-capacity // config.index_ratio) * config.index_ratio
        self.has_draft = drafts > 0
        self.slots = [self._slot(i) for i in range(slots)]

    def _slot(self, index: int) -> Slot:
        c = self.config
        tokens = torch.zeros(self.capacity, dtype=torch.int64, device=self.device)
        layers = tuple(self._delta() if kind == "linear" else self._attention() for kind in c.layers)
        reach = (c.ngram_taps - 1) * c.ngram_size
        ngram = {i: self._ring(reach + self.steps, c.stream_width, kept=reach) for i in c.ngram_layers}
        logits = self._ring(self.steps, c.vocab, kept=1, exact=True)
        streams = self._ring(PENDING + self.steps if self.has_draft else 1, c.streams, c.hidden, kept=1, exact=True)
        shared = (*ngram.values(), logits, *((streams,) if self.has_draft else ()))
        main = self._part(layers, (Grown(tokens, 0),), shared)
        draft = self._part((self._attention(),), (), ()) if self.has_draft else None
        return Slot(index, tokens, main, ngram, logits.rows, streams.rows, draft)

    def _part(
        self, layers: tuple[DeltaState | AttentionState, ...], grown: tuple[Grown, ...], rings: tuple[Ring, ...]
    ) -> Part:
        for layer in layers:
            if isinstance(layer, DeltaState):
                rings = (*rings, layer.conv, layer.states)
            else:
                grown, rings = (*grown, layer.keys, layer.values, layer.index_keys), (*rings, layer.tail)
        return Part(layers, grown, rings)

    def _ring(self, window: int, *shape: int, kept: int, exact: bool = False) -> Ring:
        """`exact` keeps the window as asked; else it is rounded up, so that few distinct windows exist."""
        window = window if exact else -(-window // 8) * 8
        return Ring(torch.zeros(window, *shape, dtype=torch.float32, device=self.device), kept)

    def _delta(self) -> DeltaState:
        c = self.config
        state = (c.delta_value_heads, c.delta_key_dim, c.delta_value_dim)
        return DeltaState(
            conv=self._ring(c.delta_taps - 1 + self.steps, c.delta_channels, kept=c.delta_taps - 1),
            states=self._ring(self.steps, *state, kept=1, exact=True),
        )

    def _attention(self) -> AttentionState:
        c = self.config
        ratio = c.index_ratio

        def cache(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=self.cache_dtype, device=self.device)

        window = -(-(ratio + self.steps) // ratio) * ratio
        return AttentionState(
            keys=Grown(cache(c.kv_heads, self.capacity, c.head_dim), 1),
            values=Grown(cache(c.kv_heads, self.capacity, c.head_dim), 1),
            index_keys=Grown(cache(self.capacity // ratio, c.index_dim), 0, ratio),
            tail=self._ring(window, c.index_dim, kept=ratio - 1, exact=True),
        )

    def saved_bytes(self) -> tuple[int, int]:
        """Host bytes of a saved sequence: fixed, and for each token (an upper bound, exact at whole blocks)."""
        slot, fixed, token = self.slots[0], 0, 0.0
        for part in _parts(slot):
            fixed += sum(r.rows[0].numel() * r.rows.element_size() * r.kept for r in part.rings)
            token += sum(g.rows.numel() * g.rows.element_size() / self.capacity for g in part.grown)
        return fixed, -int(-token // 1)

    def save(self, part: Part, length: int, saved: SavedPart | None = None, capacity: int | None = None) -> SavedPart:
        """Copy a part of `length` tokens out. With `saved`, from an earlier save of the same sequence, only new rows.

        `capacity` tokens are allocated for later saves; without it exactly what is filled.
        """
        room = length if capacity is None else capacity
        if saved is None:
            grown = [torch.empty_like(g.upto(room), device="cpu") for g in part.grown]
            rings = [torch.empty(r.kept, *r.rows.shape[1:], dtype=r.rows.dtype) for r in part.rings]
            saved = SavedPart(0, grown, rings)
        first = saved.length
        for source, target in zip(part.grown, saved.grown, strict=True):
            Grown(target, source.dim, source.per).upto(length, first).copy_(source.upto(length, first))
        for ring, kept in zip(part.rings, saved.rings, strict=True):
            kept.copy_(ring.rows.index_select(0, ring.places(length)))
        saved.length = length
        return saved

    def load(self, part: Part, saved: SavedPart) -> None:
        """Copy a saved part in; the slot holds exactly its state afterwards."""
        part.clear()
        for target, source in zip(part.grown, saved.grown, strict=True):
            target.upto(saved.length).copy_(Grown(source, target.dim, target.per).upto(saved.length))
        for ring, kept in zip(part.rings, saved.rings, strict=True):
            ring.rows.index_copy_(0, ring.places(saved.length), kept.to(ring.rows.device))


def _parts(slot: Slot) -> Iterator[Part]:
    yield slot.main
    if slot.draft is not None:
        yield slot.draft
