"""Everything of the live sequences on the GPU, allocated once, addressed by slot; and its way to host memory and back.

All of it is addressed by position, rings modulo their size, except the DeltaNet states, which lag behind the sequence
by the rows of its last step (`applied`) and are brought up by the next one. So taking rows back is setting a length.
"""

from dataclasses import dataclass, field

import torch
from carousel_kernels import rope
from torch import Tensor

from carousel_server.allocations import NGRAM_RING, SPARE, STEP_RING, STEP_ROWS, TAIL
from carousel_server.engine.config import ModelConfig


@dataclass(frozen=True)
class DeltaSlots:
    """One DeltaNet layer."""

    ring: Tensor  # [slots, STEP_RING, channels] fp32: qkv as projected
    replay: Tensor  # [slots, STEP_RING, channels + 2 h_v] fp32: q, k, v, alpha, beta of rows that `states` may lack
    states: Tensor  # [slots, h_v, dk, dv] fp32


@dataclass(frozen=True)
class AttentionSlots:
    """One attention layer."""

    keys: Tensor  # [slots, h_kv, capacity, d]
    values: Tensor
    index_keys: Tensor  # [slots, capacity / ratio, d_i]
    tail: Tensor  # [slots, TAIL, d_i] fp32


@dataclass
class Saved:
    """A sequence in host memory. With room to grow it serves later saves of the same sequence, which add only new
    rows."""

    length: int
    fixed: list[Tensor]
    grown: list[Tensor]

    @property
    def nbytes(self) -> int:
        """Host bytes."""
        return sum(t.numel() * t.element_size() for t in (*self.fixed, *self.grown))


@dataclass(frozen=True)
class SlotState:
    """The slots of all layers. `capacity` is in tokens, a multiple of the index ratio."""

    capacity: int
    tokens: Tensor  # [slots, capacity + SPARE] int64
    applied: Tensor  # [slots] int64
    layers: tuple[DeltaSlots | AttentionSlots, ...]
    ngram: dict[int, Tensor]  # layer -> [slots, NGRAM_RING, n * H] fp32
    logits: Tensor  # [slots, V] fp32 of the last row
    streams: Tensor  # [slots, STEP_ROWS, n, H] fp32 of the last step's rows
    draft: AttentionSlots | None
    cos: Tensor
    sin: Tensor
    ratio: int
    _pinned: bool = field(default=False)

    @classmethod
    def allocate(
        cls,
        c: ModelConfig,
        *,
        slots: int,
        capacity: int,
        drafts: bool,
        device: torch.device,
        cache_dtype: torch.dtype,
    ) -> "SlotState":
        """Raises torch.OutOfMemoryError when the device is too small."""
        capacity = -(-capacity // c.index_ratio) * c.index_ratio
        room = capacity + SPARE

        def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        def attention() -> AttentionSlots:
            return AttentionSlots(
                keys=make(slots, c.kv_heads, room, c.head_dim, dtype=cache_dtype),
                values=make(slots, c.kv_heads, room, c.head_dim, dtype=cache_dtype),
                index_keys=make(slots, room // c.index_ratio, c.index_dim, dtype=cache_dtype),
                tail=make(slots, TAIL, c.index_dim),
            )

        def delta() -> DeltaSlots:
            return DeltaSlots(
                ring=make(slots, STEP_RING, c.delta_channels),
                replay=make(slots, STEP_RING, c.delta_channels + 2 * c.delta_value_heads),
                states=make(slots, c.delta_value_heads, c.delta_key_dim, c.delta_value_dim),
            )

        cos, sin = rope.tables(room, c.rotary, c.theta, device)
        return cls(
            capacity=capacity,
            tokens=make(slots, room, dtype=torch.int64),
            applied=make(slots, dtype=torch.int64),
            layers=tuple(delta() if kind == "linear" else attention() for kind in c.layers),
            ngram={i: make(slots, NGRAM_RING, c.stream_width) for i in c.ngram_layers},
            logits=make(slots, c.vocab),
            streams=make(slots, STEP_ROWS, c.streams, c.hidden),
            draft=attention() if drafts else None,
            cos=cos,
            sin=sin,
            ratio=c.index_ratio,
            _pinned=device.type == "cuda",
        )

    def saved_bytes(self) -> tuple[int, int]:
        """Host bytes of a saved sequence: fixed, and for each token (rounded up)."""
        fixed = sum(t.numel() * t.element_size() for t in self._fixed(0))
        grown = sum(t.narrow(d, 0, self.ratio // per).numel() * t.element_size() for t, d, per in self._grown(0))
        return fixed, -(-grown // self.ratio)

    def save(self, slot: int, length: int, saved: Saved | None = None, room: int | None = None) -> Saved:
        """Copy the slot's sequence of `length` tokens out, only rows that `saved` lacks; room: tokens it may grow
        to."""
        first = 0 if saved is None else saved.length
        if saved is None:
            most = length if room is None else room
            fixed = [self._host(t.shape, t.dtype) for t in self._fixed(slot)]
            grown = []
            for t, d, per in self._grown(slot):
                shape = list(t.shape)
                shape[d] = -(-most // per)
                grown.append(self._host(shape, t.dtype))
            saved = Saved(0, fixed, grown)
        for target, source in zip(saved.fixed, self._fixed(slot), strict=True):
            target.copy_(source, non_blocking=True)
        for target, (source, d, per) in zip(saved.grown, self._grown(slot), strict=True):
            begin, count = first // per, -(-length // per) - first // per
            for to, out in zip(_heads(target, d), _heads(source, d), strict=True):
                to[begin : begin + count].copy_(out[begin : begin + count], non_blocking=True)
        saved.length = length
        if self._pinned:
            torch.cuda.current_stream().synchronize()
        return saved

    def load(self, slot: int, saved: Saved) -> None:
        """Copy a saved sequence in. Stream order makes later steps wait; the source must live until then."""
        for target, source in zip(self._fixed(slot), saved.fixed, strict=True):
            target.copy_(source, non_blocking=True)
        for (target, d, per), source in zip(self._grown(slot), saved.grown, strict=True):
            count = -(-saved.length // per)
            for to, out in zip(_heads(target, d), _heads(source, d), strict=True):
                to[:count].copy_(out[:count], non_blocking=True)
        if self._pinned:
            torch.cuda.current_stream().synchronize()

    def _fixed(self, slot: int) -> list[Tensor]:
        out = [self.applied[slot : slot + 1], self.logits[slot], self.streams[slot]]
        out += [ring[slot] for ring in self.ngram.values()]
        for layer in (*self.layers, *((self.draft,) if self.draft is not None else ())):
            if isinstance(layer, DeltaSlots):
                out += [layer.ring[slot], layer.replay[slot], layer.states[slot]]
            else:
                out.append(layer.tail[slot])
        return out

    def _grown(self, slot: int) -> list[tuple[Tensor, int, int]]:
        """(rows, dimension that grows, tokens a row)"""
        out = [(self.tokens[slot], 0, 1)]
        for layer in (*self.layers, *((self.draft,) if self.draft is not None else ())):
            if isinstance(layer, AttentionSlots):
                out += [(layer.keys[slot], 1, 1), (layer.values[slot], 1, 1), (layer.index_keys[slot], 0, self.ratio)]
        return out

    def _host(self, shape: torch.Size | list[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=self._pinned)


def _heads(t: Tensor, dim: int) -> list[Tensor]:
    return list(t.unbind(0)) if dim == 1 else [t]
