"""Everything of the live sequences on the GPU, allocated once, addressed by slot.

All of it is addressed by position, rings modulo their size, except the DeltaNet states, which lag behind the sequence
by the rows of its last step (`applied`) and are brought up by the next one. So taking rows back is setting a length.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class SlotState:
    """The slots of all layers. `capacity` is in tokens, a multiple of the index ratio."""

    capacity: int
    tokens: Tensor  # [slots, capacity + SPARE] int64
    applied: Tensor  # [slots] int64
    layers: tuple[DeltaSlots | AttentionSlots, ...]
    ngram: dict[int, Tensor]  # layer -> [slots, NGRAM_RING, n * H] fp32
    logits: Tensor  # [slots, V] fp32 of the last row
    streams: Tensor  # [slots, STEP_ROWS, n, H] fp32 of the last rows: those that wait for the draft head
    draft: AttentionSlots | None
    cos: Tensor
    sin: Tensor
    ratio: int

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
        )

    def fixed(self) -> list[Tensor]:
        """[slots, ...] each: what is saved whole."""
        out = [self.logits, self.streams, *self.ngram.values()]
        for layer in self._every_layer():
            out += [layer.ring, layer.replay, layer.states] if isinstance(layer, DeltaSlots) else [layer.tail]
        return [*out, self.applied]  # last: the only one that is no multiple of 16 bytes

    def grown(self) -> list[tuple[Tensor, int]]:
        """What is saved row by row, as [slots, heads, rows, width], and the tokens of a row."""
        out = [(self.tokens[:, None, :, None], 1)]
        for layer in self._every_layer():
            if isinstance(layer, AttentionSlots):
                out += [(layer.keys, 1), (layer.values, 1), (layer.index_keys[:, None], self.ratio)]
        return out

    def _every_layer(self) -> list[DeltaSlots | AttentionSlots]:
        return [*self.layers, *((self.draft,) if self.draft is not None else ())]
