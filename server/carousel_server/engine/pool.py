"""Routed experts between host memory and the GPU: slots, who is in them, and where each expert lies when it is not.

One allocation holds the slots of every layer and, behind them, the staging area of a decode step. An expert is read
from its slot or, when no slot is free in a step, from staging; kernels see slot numbers only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from carousel_kernels.experts.triton import Slab
from carousel_kernels.router.triton import Residency
from torch import Tensor

from carousel_server.engine.config import ModelConfig

STAGED_ROWS = 4  # rows of a step, each with its own experts at worst


@dataclass(frozen=True)
class HostExperts:
    """One layer's experts where they lie: gate, up and down of each, with FP8 scales apart."""

    parts: Sequence[tuple[Tensor, Tensor, Tensor]]  # E of (gate [I, H], up [I, H], down [H, I])
    scales: Tensor | None  # [E, blocks of gate | up | down] fp32


class ExpertPool:
    """See the module. `layers` counts the draft head's as the last one."""

    def __init__(
        self, config: ModelConfig, layers: int, slots: int, dtype: torch.dtype, device: torch.device, *, blocks: int = 0
    ) -> None:
        """`slots` experts of each layer; blocks: FP8 scale blocks of an expert. Every layer starts empty."""
        c = config
        self.config, self.layers, self.slots, self.dtype, self.device = c, layers, min(slots, c.experts), dtype, device
        self.values = 3 * c.expert_width * c.hidden
        self.resident = self.slots == c.experts
        staged = 0 if self.resident else STAGED_ROWS * c.experts_per_token
        self.memory = torch.empty(layers * self.slots + staged, self.values, dtype=dtype, device=device)
        self.scales = torch.empty(layers, c.experts, blocks, device=device) if blocks else None
        self.tick = torch.zeros(1, dtype=torch.int64, device=device)
        self.source = torch.zeros(layers, c.experts, 3, dtype=torch.int64, device=device)
        self.residency = [None if self.resident else self._residency(i) for i in range(layers)]
        self.slabs = [self._slab(i) for i in range(layers)]
        self._held: list[HostExperts] = []
        self.registered: object = None  # what keeps the host memory visible to the device
        self._every = torch.arange(c.experts, dtype=torch.int32, device=device)

    def _residency(self, layer: int) -> Residency:
        c = self.config

        def full(n: int, value: int, dtype: torch.dtype) -> Tensor:
            return torch.full((n,), value, dtype=dtype, device=self.device)

        return Residency(
            table=full(c.experts, -1, torch.int32),
            owner=full(self.slots, -1, torch.int32),
            used=full(self.slots, 0, torch.int64),
            counts=full(2, 0, torch.int64),
            tick=self.tick,
            stage=(self.layers - layer) * self.slots,
        )

    def _slab(self, layer: int) -> Slab:
        first = layer * self.slots
        scales = None if self.scales is None else self.scales[layer]
        return Slab(self.memory[first : first + self.slots], scales, self.config.expert_width)

    def fill(self, layer: int, experts: HostExperts) -> None:
        """Name a layer's experts and load the first `slots` of them. Those of a pool that holds all are not kept."""
        c = self.config
        part = c.expert_width * c.hidden
        if self.scales is not None and experts.scales is not None:
            self.scales[layer].copy_(experts.scales)
        slab = self.slabs[layer].slots
        for e in range(self.slots):
            for i, piece in enumerate(experts.parts[e]):
                slab[e, i * part : (i + 1) * part].copy_(piece.reshape(-1), non_blocking=True)
        if not self.resident:
            self.adopt(layer, experts)

    def adopt(self, layer: int, experts: HostExperts) -> None:
        """Say where a layer's experts lie, of which the first `slots` are in their slots already."""
        residency = self.residency[layer]
        if residency is not None:
            self.source[layer].copy_(torch.tensor([[p.data_ptr() for p in parts] for parts in experts.parts]))
            first = torch.arange(self.slots, dtype=torch.int32, device=self.device)
            residency.table[: self.slots] = first
            residency.owner.copy_(first)
            self._held.append(experts)

    def stream(self, layer: int) -> Tensor:
        """[E] int32: a slot number for every expert of the layer, those that are not resident brought to the stream area.

        The area holds two layers in turn: the copies of the next layer run beside this layer's products.
        """
        if self.resident:
            return self._every
        return self._streamed(layer)

    def counts(self) -> Tensor:
        """[layers, 2] int64 on the host: experts selected by steps so far, and those that were not resident."""
        found = [r.counts.cpu() if r is not None else torch.zeros(2, dtype=torch.int64) for r in self.residency]
        return torch.stack(found)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert in a slot."""
        return self.values * self.dtype.itemsize


def slots_for(pool_bytes: int | None, config: ModelConfig, layers: int, expert_bytes: int) -> int:
    """Slots of each layer for a byte limit: at least the experts of one row, at most all; None: all."""
    if pool_bytes is None:
        return config.experts
    return max(config.experts_per_token, min(config.experts, pool_bytes // (layers * expert_bytes)))
