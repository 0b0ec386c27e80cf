"""Routed experts between host memory and the GPU: slots, who is in them, and where each expert lies when it is not.

One allocation holds the slots of every layer and, behind them, the staging area of a decode step. An expert is read
from its slot or, when no slot is free in a step, from staging; kernels see slot numbers only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from carousel_kernels.experts.triton import Slab
from carousel_kernels.router.triton import Residency
from torch import Tensor

from carousel_server.allocations import area_slots, pool_slots
from carousel_server.engine.config import ModelConfig


@dataclass(frozen=True)
class HostExperts:
    """One layer's experts where they lie: gate, up and down of each, with FP8 scales apart."""

    parts: Sequence[tuple[Tensor, Tensor, Tensor]]  # E of (gate [I, H], up [I, H], down [H, I])
    scales: Tensor | None  # [E, blocks of gate | up | down] fp32


class Loading(Protocol):
    """Experts on their way."""

    def wait(self, layer: int) -> None:
        """What is started from now on finds the layer's experts."""

    def check(self) -> None:
        """EngineError, fatal, when they cannot be loaded."""


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
        own, area = layers * self.slots, area_slots(c.experts, c.experts_per_token, self.slots)
        # zeros: kernels are compiled and captured before the experts are here
        self.memory = torch.zeros(own + area, self.values, dtype=dtype, device=device)
        self.area = own + max(0, area - 2 * c.experts)  # first slot of the stream area
        self.scales = torch.zeros(layers, c.experts, blocks, device=device) if blocks else None
        self.tick = torch.zeros(1, dtype=torch.int64, device=device)
        self.source = torch.zeros(layers, c.experts, 3, dtype=torch.int64, device=device)
        self.tables = torch.full((layers, c.experts), -1, dtype=torch.int32, device=device)
        self.residency = [None if self.resident else self._residency(i) for i in range(layers)]
        self.slabs = [self._slab(i) for i in range(layers)]
        self._held: dict[int, HostExperts] = {}
        ahead = device.type == "cuda" and not self.resident
        self._copies = torch.cuda.Stream(device) if ahead else None  # type: ignore[no-untyped-call]
        self._arrived: dict[int, torch.cuda.Event | None] = {}  # layers whose copies were started
        self._tables: list[list[int]] = []  # residency at the start of a chunk; prefill does not change it
        self.loading: Loading | None = None
        self.registered: object = None  # what keeps the host memory visible to the device
        self._every = torch.arange(c.experts, dtype=torch.int32, device=device)

    def _residency(self, layer: int) -> Residency:

        def full(n: int, value: int, dtype: torch.dtype) -> Tensor:
            return torch.full((n,), value, dtype=dtype, device=self.device)

        return Residency(
            table=self.tables[layer],
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
        """Name a layer's experts and load the first `slots` of them."""
        if self.scales is not None and experts.scales is not None:
            self.scales[layer].copy_(experts.scales)
        for slot, parts in zip(self.slabs[layer].slots, experts.parts[: self.slots], strict=True):
            self._copy(slot, parts)
        self.adopt(layer, experts)

    def adopt(self, layer: int, experts: HostExperts) -> None:
        """Say where a layer's experts lie, of which the first `slots` are in their slots already."""
        residency = self.residency[layer]
        if residency is not None:
            self.source[layer].copy_(torch.tensor([[p.data_ptr() for p in parts] for parts in experts.parts]))
            first = torch.arange(self.slots, dtype=torch.int32, device=self.device)
            residency.table[: self.slots] = first
            residency.owner.copy_(first)
            self._held[layer] = experts

    def stream(self, layer: int) -> Tensor:
        """[E] int32: a slot number for every expert of the layer, those that are not resident brought to the stream
        area.

        The area holds two layers in turn: the copies of the next layer run beside this layer's products.
        """
        if self.resident:
            if self.loading is not None:
                self.loading.wait(layer)
            return self._every
        if layer == 0 or not self._tables:
            self._tables = self.tables.tolist()
            self._arrived.clear()
        self._send(layer)
        event = self._arrived.pop(layer)
        if event is not None:
            torch.cuda.current_stream().wait_event(event)
        if layer + 1 < len(self.config.layers):
            self._send(layer + 1)
        first = self.area + layer % 2 * self.config.experts - layer * self.slots
        table = self.tables[layer]
        return torch.where(table >= 0, table, self._every + first)

    def complete(self) -> None:
        """What is started from now on finds every expert where `residency` says."""
        if self.loading is not None:
            for layer in range(self.layers):
                self.loading.wait(layer)
            self.loading = None

    def check(self) -> None:
        """EngineError, fatal, when experts that are on their way cannot be loaded."""
        if self.loading is not None:
            self.loading.check()

    def _send(self, layer: int) -> None:
        """Start the copies of a layer's missing experts into its half of the area, once that half's last reader is
        done."""
        if layer in self._arrived:
            return
        first = self.area + layer % 2 * self.config.experts
        if self._copies is not None:
            self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies):
            for e, slot in enumerate(self._tables[layer]):
                if slot < 0:
                    self._copy(self.memory[first + e], self._held[layer].parts[e])
            self._arrived[layer] = None if self._copies is None else self._copies.record_event()

    def _copy(self, target: Tensor, parts: tuple[Tensor, Tensor, Tensor]) -> None:
        """An expert into a slot, in one copy where its parts follow each other in one storage."""
        part, storages = parts[0].nbytes, {p.untyped_storage().data_ptr() for p in parts}
        places = [p.data_ptr() - parts[0].data_ptr() for p in parts]
        if len(storages) == 1 and places == [0, part, 2 * part]:
            whole = torch.as_strided(parts[0], (self.values,), (1,), parts[0].storage_offset())
            target.copy_(whole, non_blocking=True)
            return
        for i, piece in enumerate(parts):
            target[i * piece.numel() : (i + 1) * piece.numel()].copy_(piece.reshape(-1), non_blocking=True)

    def counts(self) -> Tensor:
        """[layers, 2] int64 on the host: experts selected by steps so far, and those that were not resident."""
        found = [r.counts.cpu() if r is not None else torch.zeros(2, dtype=torch.int64) for r in self.residency]
        return torch.stack(found)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert in a slot."""
        return self.values * self.dtype.itemsize


def slots_for(pool_bytes: int | None, config: ModelConfig, layers: int, expert_bytes: int) -> int:
    """Slots of each layer for a byte limit; None: for every expert."""
    if pool_bytes is None:
        return config.experts
    return pool_slots(
        pool_bytes, layers=layers, experts=config.experts, top=config.experts_per_token, expert_bytes=expert_bytes
    )
