"""Many rows of a prompt through the model on the GPU. Products on tensor cores, or IEEE fp32 where `exact` asks for it.

The order of every sum is fixed by the sizes of the model, never by the number of rows; chunks that end on multiples
of 64
tokens therefore give the same state bit for bit, whatever their length.
"""

from collections.abc import Iterator

import torch
from carousel_kernels.attention import triton as attention
from carousel_kernels.attention_input import triton as attention_input
from carousel_kernels.block_select import triton as block_select
from carousel_kernels.causal_conv import triton as causal_conv
from carousel_kernels.experts import grouped
from carousel_kernels.gated_delta import triton as gated_delta
from carousel_kernels.hyper_connection import triton as hyper_connection
from carousel_kernels.indexer import triton as indexer
from carousel_kernels.linear.triton import many_rows
from carousel_kernels.ngram_gate import triton as ngram_gate
from carousel_kernels.norm import triton as norm
from carousel_kernels.step import triton as step
from torch import Tensor
from torch.nn.functional import silu

from carousel_server.engine.gpu_forward import Forward
from carousel_server.engine.gpu_state import AttentionSlots, DeltaSlots
from carousel_server.engine.weights import Attention, Delta, Experts, Layer, Mixer, Ngram


class Prefill:
    """Feeds prompt rows into a slot. `exact`: fp32 activations; otherwise bf16 between kernels, fp32 streams."""

    def __init__(self, forward: Forward, *, exact: bool) -> None:
        self.forward, self.exact = forward, exact
        self.dtype = torch.float32 if exact else torch.bfloat16
        self.config, self.state = forward.config, forward.state

    def __call__(self, slot: int, start: int, rows: int, waiting: int) -> None:
        """Rows start .. start + rows - 1, whose tokens are in the state; keeps the last row's logits and streams.

        waiting: rows before `start` that the draft head lacks, their streams kept. Afterwards it lacks the last one.
        """
        s, f = self.state, self.forward
        where = self._where(slot, start, rows)
        streams = torch.empty(rows, self.config.streams, self.config.hidden, device=s.tokens.device)
        step.embed(s.tokens, where, f.weights.embedding, streams)
        for i, (layer, slots) in enumerate(zip(f.weights.layers, s.layers, strict=True)):
            if layer.ngram is not None:
                self._ngram(i, layer.ngram, streams, where, slot, start)
            self._layer(i, layer, slots, streams, where, slot, start)
        s.applied[slot] = start + rows
        if s.draft is not None:
            self._draft(slot, start, streams, waiting)
        s.streams[slot, 0] = streams[-1]
        f.logits(streams[-1:], f.weights.mixer, s.logits[slot : slot + 1])

    def _where(self, slot: int, start: int, rows: int) -> Tensor:
        where = torch.arange(start - 1, start + rows, device=self.state.tokens.device)
        where[0] = slot
        return where

    def _layer(
        self,
        index: int,
        layer: Layer,
        slots: DeltaSlots | AttentionSlots,
        streams: Tensor,
        where: Tensor,
        slot: int,
        start: int,
    ) -> None:
        x, logits = self._mix(layer.block_mixer, streams)
        if isinstance(slots, DeltaSlots):
            assert isinstance(layer.block, Delta)
            inner = self._delta(layer.block, slots, x, where, slot, start)
        else:
            assert isinstance(layer.block, Attention)
            inner = self._attention(layer.block, slots, x, where, slot, start)
        hyper_connection.inject(streams, many_rows(inner, layer.block.out, scale=layer.block.out_scale), logits)
        x, logits = self._mix(layer.experts_mixer, streams)
        hyper_connection.inject(streams, self._experts(index, layer.experts, x), logits)

    def _mix(self, mixer: Mixer, streams: Tensor) -> tuple[Tensor, Tensor]:
        """A block's input [T, H] and the inject logits [T, n]."""
        n, rank = self.config.streams, mixer.up.shape[1]
        normed = hyper_connection.norm(streams, mixer.scale, self.config.eps, self.dtype)
        low = many_rows(normed, mixer.down)
        gates = many_rows(silu(low[:, :rank] / n).to(self.dtype), mixer.up, dtype=self.dtype)
        return hyper_connection.blend(gates, normed, n), low[:, rank:]

    def _delta(self, w: Delta, slots: DeltaSlots, x: Tensor, where: Tensor, slot: int, start: int) -> Tensor:
        c = self.config
        channels, width = c.delta_channels, c.delta_width
        y = many_rows(x, w.project, scale=w.project_scale)
        gated_delta.step(
            y, slots.ring, slots.replay, slots.states, w.taps, w.decay, w.dt_bias, y, where, self.state.applied,
            key_heads=c.delta_key_heads, flush=True,
        )  # fmt: skip
        qkv = causal_conv.causal_conv(y[:, :channels], slots.ring[slot], w.taps, start, 1, self.dtype)
        ab = y[:, channels + width :]
        o = gated_delta.chunked(
            qkv, ab, w.decay, w.dt_bias, slots.states[slot],
            key_heads=c.delta_key_heads, fresh=start == 0, exact=self.exact,
        )  # fmt: skip
        causal_conv.keep(y[:, :channels], slots.ring[slot], start)
        z = y[:, channels : channels + width]
        return norm.gated_rms_norm(o, w.scale, z, c.eps, c.output_gate == "sigmoid", self.dtype)

    def _attention(
        self, w: Attention, slots: AttentionSlots, x: Tensor, where: Tensor, slot: int, start: int
    ) -> Tensor:
        c, rows = self.config, x.shape[0]
        y, q, index_q = self._cache(w, slots, x, where, slot, start)
        blocks = torch.empty(rows, c.index_blocks, dtype=torch.int32, device=x.device)
        complete = (start + rows) // c.index_ratio
        if complete > c.index_blocks:
            scores = torch.empty(rows, complete, device=x.device)
            indexer.scores(index_q, slots.index_keys, scores, where, top=c.index_blocks, ratio=c.index_ratio)
            block_select.select(scores, blocks, where, ratio=c.index_ratio)
        out = torch.empty(rows, c.heads * c.head_dim, dtype=self.dtype, device=x.device)
        return attention.attend(q, y, slots.keys, slots.values, blocks, out, where, ratio=c.index_ratio)

    def _cache(
        self, w: Attention, slots: AttentionSlots, x: Tensor, where: Tensor, slot: int, start: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and index keys of the rows; returns the projection, and both queries."""
        c, rows = self.config, x.shape[0]
        y = many_rows(x, w.project, scale=w.project_scale)
        q = torch.empty(rows, c.heads, c.head_dim, device=x.device)
        index_q = torch.empty(rows, c.index_heads, c.index_dim, device=x.device)
        attention_input.prepare(
            y, q, index_q, slots.keys, slots.values, slots.tail, slots.index_keys,
            (w.q_scale, w.k_scale, w.index_q_scale, w.index_k_scale), self.state.cos, self.state.sin, where,
            ratio=c.index_ratio, eps=c.eps, write_tail=False,
        )  # fmt: skip
        causal_conv.keep(y[:, -c.index_dim :], slots.tail[slot], start)
        return y, q, index_q

    def _experts(self, index: int, w: Experts, x: Tensor) -> Tensor:
        c, pool = self.config, self.forward.pool
        y = many_rows(x, w.project)
        found = torch.topk(y[:, : c.experts], c.experts_per_token, dim=1)
        mix = torch.softmax(found.values, 1)
        gate_up, opening = y[:, c.experts : -1], y[:, -1:]
        hidden = silu(gate_up[:, : c.shared_width]) * gate_up[:, c.shared_width :]
        shared = many_rows(hidden.to(self.dtype), w.shared_down, dtype=self.dtype)
        slab = pool.slabs[index]
        slots = pool.stream(index)
        return grouped.many_rows(x, found.indices, mix, slab, slots, shared, opening)

    def _ngram(self, index: int, w: Ngram, streams: Tensor, where: Tensor, slot: int, start: int) -> None:
        c, rows = self.config, streams.shape[0]
        found = torch.empty(rows, c.ngram_dim, dtype=self.dtype, device=streams.device)
        self.forward.gather(index, w, where, found)
        y = many_rows(found, w.project)
        work = torch.empty_like(streams), torch.empty_like(streams)
        ring = self.state.ngram[index]
        ngram_gate.inject(
            streams, y, w.key_scale, w.query_scale, w.conv_scale, w.taps, ring, where, work,
            dilation=c.ngram_size, eps=c.eps, keep=False,
        )  # fmt: skip
        causal_conv.keep(work[1].view(rows, -1), ring[slot], start)

    def _draft(self, slot: int, start: int, streams: Tensor, waiting: int) -> None:
        """Keys, values and index keys of the draft head for every row whose next token is known."""
        s, c, head = self.state, self.config, self.forward.weights.draft
        assert head is not None
        assert s.draft is not None
        hidden = torch.cat([s.streams[slot, :waiting], streams[:-1]])
        first, rows = start - waiting, hidden.shape[0]
        if rows == 0:
            return
        where = self._where(slot, first, rows)
        tokens = s.tokens[slot, first + 1 : first + 1 + rows]
        embedded = self.forward.weights.embedding[tokens].float()
        e = many_rows(_rms(embedded, head.embedding_scale, c.eps).to(self.dtype), head.fc_embedding)
        h = _rms(hidden.flatten(1), head.hidden_scale, c.eps).to(self.dtype)
        mixed = many_rows(h.view(rows * c.streams, c.hidden), head.fc_hidden).view(rows, c.streams, c.hidden)
        mixed += e[:, None]
        x, _ = self._mix(head.layer.block_mixer, mixed)
        assert isinstance(head.layer.block, Attention)
        self._cache(head.layer.block, s.draft, x, where, slot, first)


def _rms(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * scale


def chunks(start: int, rows: int, most: int) -> Iterator[tuple[int, int]]:
    """(first, rows) of chunks that end on absolute multiples of 64 tokens, except the last; each at most `most`
    rows."""
    at, end = start, start + rows
    while at < end:
        stop = min(end, (at + most) // 64 * 64)
        if stop <= at:
            stop = min(end, at + most)
        yield at, stop - at
        at = stop
