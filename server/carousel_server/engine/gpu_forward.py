"""One to four rows through the model on the GPU: the kernels of a decode step, in order. Decides nothing.

Buffers are allocated once and reused by every layer; all addresses are fixed, so the calls can be captured as a graph.
"""

from dataclasses import dataclass

import torch
from carousel_kernels.attention import triton as attention
from carousel_kernels.attention_input import triton as attention_input
from carousel_kernels.block_select import triton as block_select
from carousel_kernels.experts import triton as experts
from carousel_kernels.gated_delta import triton as gated_delta
from carousel_kernels.head import triton as head
from carousel_kernels.hyper_connection import triton as hyper_connection
from carousel_kernels.indexer import triton as indexer
from carousel_kernels.linear import triton as linear
from carousel_kernels.ngram import triton as ngram
from carousel_kernels.ngram_gate import triton as ngram_gate
from carousel_kernels.norm import triton as norm
from carousel_kernels.router.triton import Routes
from carousel_kernels.router.triton import route as route
from torch import Tensor

from carousel_server.allocations import STEP_ROWS
from carousel_server.engine.config import ModelConfig
from carousel_server.engine.gpu_state import AttentionSlots, DeltaSlots, SlotState
from carousel_server.engine.pool import ExpertPool
from carousel_server.engine.weights import Attention, Delta, Layer, Mixer, Ngram, Weights


@dataclass(frozen=True)
class Table:
    """The n-gram table as the device sees it."""

    shards: Tensor  # [number] int64 addresses
    height: int  # rows of a shard
    dtype: str
    held: tuple[Tensor, ...]  # the memory behind the addresses


class Buffers:
    """What must be static for a captured step, for up to four rows."""

    def __init__(self, c: ModelConfig, capacity: int, device: torch.device) -> None:
        def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        wide = max(
            c.delta_channels + c.delta_width + 2 * c.delta_value_heads,
            (2 * c.heads + 2 * c.kv_heads) * c.head_dim + (c.index_heads + 1) * c.index_dim,
            c.stream_width + c.hidden,
        )
        self.streams = make(STEP_ROWS, c.streams, c.hidden)
        self.draft_streams = make(STEP_ROWS, c.streams, c.hidden)
        self.part = make(c.streams * STEP_ROWS * (c.mix_rank + c.streams))
        self.rstd, self.amount = make(STEP_ROWS * c.streams), make(STEP_ROWS, c.streams)
        self.x = make(STEP_ROWS, c.hidden)
        self.y = make(STEP_ROWS * wide)
        self.inner = make(STEP_ROWS, max(c.delta_width, c.heads * c.head_dim))
        self.rule = make(STEP_ROWS, c.delta_width)
        self.q = make(STEP_ROWS, c.heads, c.head_dim)
        self.index_q = make(STEP_ROWS, c.index_heads, c.index_dim)
        self.scores = make(STEP_ROWS, -(-capacity // c.index_ratio))
        self.blocks = make(STEP_ROWS, c.index_blocks, dtype=torch.int32)
        parts = attention.splits(capacity, c.index_blocks, c.index_ratio)
        self.attend = make(STEP_ROWS, c.heads, parts, c.head_dim), make(STEP_ROWS, c.heads, parts, 2)
        self.routed = make(STEP_ROWS, -(-(c.experts + 2 * c.shared_width + 1) // 16) * 16)
        self.routes = Routes.empty(c.experts, c.experts_per_token, device)
        most = STEP_ROWS * c.experts_per_token
        self.experts = make(most, STEP_ROWS, c.expert_width), make(most + 1, STEP_ROWS, c.hidden)
        self.found = {i: make(STEP_ROWS, c.ngram_dim) for i in c.ngram_layers}
        self.gated = make(STEP_ROWS, c.streams, c.hidden), make(STEP_ROWS, c.streams, c.hidden)
        self.logits = make(STEP_ROWS, c.vocab)
        self.draft_logits = make(1, c.vocab)
        tiles = head.tiles(c.vocab)
        self.best = make(STEP_ROWS, tiles), make(STEP_ROWS, tiles, dtype=torch.int32)
        self.fuse = make(STEP_ROWS, c.hidden), make(STEP_ROWS, c.streams, c.hidden), make(STEP_ROWS, c.hidden)


class Forward:
    """The model's layers over a few rows of one slot."""

    def __init__(
        self, config: ModelConfig, weights: Weights, state: SlotState, pool: ExpertPool, tables: dict[int, Table]
    ) -> None:
        self.config, self.weights, self.state, self.pool, self.tables = config, weights, state, pool, tables
        self.buffers = Buffers(config, state.tokens.shape[1], state.tokens.device)
        device = state.tokens.device
        aside = device.type == "cuda" and bool(config.ngram_layers)
        self._ahead = torch.cuda.Stream(device) if aside else None  # type: ignore[no-untyped-call]
        self.sparse = True  # False where no row sees more blocks than it may keep: the indexer is left out

    def layers(self, streams: Tensor, where: Tensor) -> None:
        """All layers in place: streams [R, n, H], rows at positions where[1:] of slot where[0]."""
        self._look_up(where, streams.shape[0])
        for i, (layer, slots) in enumerate(zip(self.weights.layers, self.state.layers, strict=True)):
            if layer.ngram is not None:
                self._ngram(i, layer.ngram, streams, where)
            self.layer(i, layer, slots, streams, where)

    def layer(
        self, index: int, layer: Layer, slots: DeltaSlots | AttentionSlots, streams: Tensor, where: Tensor
    ) -> None:
        """One layer; `index` counts pools, the draft head's being the last."""
        b, rows = self.buffers, streams.shape[0]
        x = b.x[:rows]
        amount = b.amount[:rows]
        self._mix(layer.block_mixer, streams, x, amount)
        if isinstance(slots, DeltaSlots):
            assert isinstance(layer.block, Delta)
            inner = self._delta(layer.block, slots, x, where)
        else:
            assert isinstance(layer.block, Attention)
            inner = self._attention(layer.block, slots, x, where)
        linear.few_rows_inject(inner, layer.block.out, streams, amount, scale=layer.block.out_scale)
        self._mix(layer.experts_mixer, streams, x, amount)
        c, w = self.config, layer.experts
        y = b.routed[:rows, : w.project.shape[0]]
        linear.few_rows(x, w.project, y)
        residency = self.pool.residency[index]
        route(y[:, : c.experts], b.routes, residency, rows=rows)
        slab = self.pool.slabs[index]
        if residency is not None:
            experts.fetch(slab, self.pool.source[index], b.routes, rows=rows)
        experts.few_rows(x, y, slab, w.shared_down, b.routes, residency, streams, amount, b.experts)

    def remember(self, layer: Layer, slots: AttentionSlots, streams: Tensor, where: Tensor) -> None:
        """Of a layer with attention only the keys, values and index keys of the rows; `streams` stay as they are."""
        assert isinstance(layer.block, Attention)
        b, rows = self.buffers, streams.shape[0]
        x = b.x[:rows]
        self._mix(layer.block_mixer, streams, x, b.amount[:rows])
        self._cache(layer.block, slots, x, where)

    def logits(
        self, streams: Tensor, mixer: Mixer, out: Tensor, weight: Tensor | None = None, scale: Tensor | None = None
    ) -> None:
        """Logits [R, V] fp32 of rows that have passed all layers, from the model's head or from another one."""
        rows = streams.shape[0]
        x = self.buffers.x[:rows]
        self._mix(mixer, streams, x, None)
        linear.few_rows(x, self.weights.head if weight is None else weight, out, scale=scale)

    def _mix(self, mixer: Mixer, streams: Tensor, x: Tensor, amount: Tensor | None) -> None:
        b, rows, n = self.buffers, streams.shape[0], self.config.streams
        out = mixer.down.shape[0]
        part = b.part[: n * rows * out].view(n, rows, out)
        rstd = b.rstd[: rows * n].view(rows, n)
        hyper_connection.mix_down(streams, mixer.scale, mixer.down, part, rstd, self.config.eps)
        hyper_connection.mix_up(streams, mixer.scale, mixer.up, part, rstd, x, amount)

    def _y(self, rows: int, width: int) -> Tensor:
        return self.buffers.y[: rows * width].view(rows, width)

    def _delta(self, w: Delta, slots: DeltaSlots, x: Tensor, where: Tensor) -> Tensor:
        c, rows = self.config, x.shape[0]
        y = self._y(rows, w.project.shape[0])
        linear.few_rows(x, w.project, y, scale=w.project_scale)
        o = self.buffers.rule.view(-1)[: rows * c.delta_width].view(rows, c.delta_value_heads, c.delta_value_dim)
        gated_delta.step(
            y, slots.ring, slots.replay, slots.states, w.taps, w.decay, w.dt_bias, o, where, self.state.applied,
            key_heads=c.delta_key_heads,
        )  # fmt: skip
        z = y[:, c.delta_channels : c.delta_channels + c.delta_width]
        out = self.buffers.inner.view(-1)[: rows * c.delta_width].view(rows, c.delta_width)
        return norm.gated_rms_norm(o, w.scale, z, c.eps, c.output_gate == "sigmoid", torch.float32, out)

    def _attention(self, w: Attention, slots: AttentionSlots, x: Tensor, where: Tensor) -> Tensor:
        b, c, rows = self.buffers, self.config, x.shape[0]
        y = self._cache(w, slots, x, where)
        if self.sparse:
            indexer.scores(
                b.index_q[:rows], slots.index_keys, b.scores[:rows], where, top=c.index_blocks, ratio=c.index_ratio
            )
            block_select.select(b.scores[:rows], b.blocks[:rows], where, ratio=c.index_ratio)
        wide = c.heads * c.head_dim
        out = b.inner.view(-1)[: rows * wide].view(rows, wide)
        return attention.attend(
            b.q[:rows], y, slots.keys, slots.values, b.blocks[:rows], out, where, ratio=c.index_ratio, work=b.attend
        )

    def _cache(self, w: Attention, slots: AttentionSlots, x: Tensor, where: Tensor) -> Tensor:
        """Keys, values and index keys of the rows; returns the projection, both queries are in their buffers."""
        b, c, rows = self.buffers, self.config, x.shape[0]
        y = self._y(rows, w.project.shape[0])
        linear.few_rows(x, w.project, y, scale=w.project_scale)
        scales = (w.q_scale, w.k_scale, w.index_q_scale, w.index_k_scale)
        attention_input.prepare(
            y, b.q[:rows], b.index_q[:rows], slots.keys, slots.values, slots.tail, slots.index_keys, scales,
            self.state.cos, self.state.sin, where, ratio=c.index_ratio, eps=c.eps,
        )  # fmt: skip
        return y

    def _look_up(self, where: Tensor, rows: int) -> None:
        """Start to gather the rows of every n-gram layer: they are known now, and host memory is slow to answer.

        On a stream of its own, also while a step is captured, and with full dependencies; `_ngram` waits for it.
        """
        if self._ahead is not None:
            self._ahead.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._ahead):
            for i in self.config.ngram_layers:
                w = self.weights.layers[i].ngram
                assert w is not None
                self.gather(i, w, where, self.buffers.found[i][:rows], early=False)

    def _ngram(self, index: int, w: Ngram, streams: Tensor, where: Tensor) -> None:
        b, c, rows = self.buffers, self.config, streams.shape[0]
        if self._ahead is not None:
            torch.cuda.current_stream().wait_stream(self._ahead)
        y = self._y(rows, w.project.shape[0])
        linear.few_rows(b.found[index][:rows], w.project, y)
        ngram_gate.inject(
            streams, y, w.key_scale, w.query_scale, w.conv_scale, w.taps, self.state.ngram[index], where,
            (b.gated[0][:rows], b.gated[1][:rows]), dilation=c.ngram_size, eps=c.eps,
        )  # fmt: skip

    def gather(self, index: int, w: Ngram, where: Tensor, out: Tensor, *, early: bool = True) -> None:
        """The n-gram embeddings of the rows, from where the table lies. early: see `ngram.gather`."""
        table = self.tables[index]
        ngram.gather(
            self.state.tokens, where, w.multipliers, w.sizes, w.offsets, table.shards, table.height, table.dtype,
            w.table_scale, self.config.reset_token, out, early=early,
        )  # fmt: skip
