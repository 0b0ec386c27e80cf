"""Decode on a CPU: up to four rows through operators that are bound to their weights and buffers.

The same pass as `Model.forward`, in the `few_rows` form of the operators; what each means is in its `reference`.
"""

import torch
from carousel_kernels import indexer, linear, ngram
from carousel_kernels.attention import few_rows as attention
from carousel_kernels.attention_input.few_rows import Turned
from carousel_kernels.causal_conv.few_rows import CausalConv
from carousel_kernels.experts.few_rows import Experts
from carousel_kernels.gated_delta.few_rows import Recurrent
from carousel_kernels.hyper_connection.few_rows import Mix
from carousel_kernels.ngram_gate.few_rows import Gate
from carousel_kernels.norm.few_rows import RmsNorm
from carousel_kernels.scratch import Scratch
from torch import Tensor
from torch.nn.functional import silu

from carousel_server.engine.config import ModelConfig
from carousel_server.engine.state import AttentionState, DeltaState, Ring
from carousel_server.engine.weights import Attention, Delta, Layer, Mixer, Ngram, Weights

MOST = 4  # rows: a token and three drafts


class Rows:
    """What all layers share for one number of rows: the streams that they change, and buffers."""

    def __init__(self, config: ModelConfig, count: int, cos: Tensor, sin: Tensor) -> None:
        self.config, self.count, self.cos, self.sin = config, count, cos, sin
        self.scratch = Scratch(count)
        self.streams = self.scratch("streams", config.streams, config.hidden)

    def mix(self, mixer: Mixer) -> Mix:
        """That mixer on the streams."""
        return Mix(self.scratch, self.streams, mixer.scale, mixer.down, mixer.up, self.config.eps)


class DeltaBlock:
    """A gated DeltaNet block: x to y."""

    def __init__(self, rows: Rows, weights: Delta, x: Tensor) -> None:
        c, scratch = rows.config, rows.scratch
        self.x, self.project, self.last = x, weights.project.t(), weights.out.t()
        self.projected = scratch("delta.projected", weights.project.shape[0])
        qkv, z, b, a = self.projected.split_with_sizes(
            [c.delta_channels, c.delta_width, c.delta_value_heads, c.delta_value_heads], 1
        )
        self.conv = CausalConv(scratch, qkv, weights.taps, 1)
        self.rule = Recurrent(
            scratch, self.conv.out, a, b, weights.decay, weights.dt_bias, c.delta_key_heads, c.delta_key_dim
        )
        o = self.rule.out
        normed = scratch("delta.normed", *o.shape[1:])
        self.norm = RmsNorm(o, normed, scratch("delta.norm", o.shape[1], 1), weights.scale, c.eps)
        self.z, self.opened = z, scratch("delta.opened", c.delta_width)
        self.open = torch.sigmoid if c.output_gate == "sigmoid" else silu_to
        self.normed = normed.view(rows.count, c.delta_width)
        self.y = scratch("y", c.hidden)

    def __call__(self, state: DeltaState, start: int) -> None:
        torch.mm(self.x, self.project, out=self.projected)
        self.conv(state.conv.rows, state.conv.each, start)
        self.rule(state.states.each, start)
        self.norm()
        self.open(self.z, out=self.opened).mul_(self.normed)
        torch.mm(self.opened, self.last, out=self.y)


class AttentionBlock:
    """An attention block with its indexer: x to y."""

    def __init__(self, rows: Rows, weights: Attention, x: Tensor) -> None:
        c, scratch, count = rows.config, rows.scratch, rows.count
        self.config, self.weights, self.count, self.cos, self.sin = c, weights, count, rows.cos, rows.sin
        self.x, self.project, self.last = x, weights.project.t(), weights.out.t()
        self.projected = scratch("attention.projected", weights.project.shape[0])
        width = c.kv_heads * c.head_dim
        q_gate, k, v, index_q, self.index_k = self.projected.split_with_sizes(
            [2 * c.heads * c.head_dim, width, width, c.index_heads * c.index_dim, c.index_dim], 1
        )
        q, gate = q_gate.view(count, c.heads, 2 * c.head_dim).chunk(2, -1)
        self.turned = Turned(
            scratch,
            q,
            k.view(count, c.kv_heads, c.head_dim),
            weights.q_scale,
            weights.k_scale,
            c.rotary,
            c.eps,
        )
        self.k = self.turned.k.transpose(0, 1)
        self.v = v.view(count, c.kv_heads, c.head_dim).transpose(0, 1)
        self.index_q = index_q.view(count, c.index_heads, c.index_dim)
        self.index_rows = self.index_k.unbind(0)
        self.attention = attention.Attention(scratch, self.turned.q, gate, c.kv_heads)
        self.y = scratch("y", c.hidden)

    def __call__(self, state: AttentionState, start: int, cos: Tensor, sin: Tensor) -> None:
        c = self.config
        torch.mm(self.x, self.project, out=self.projected)
        self.turned(cos[:, None], sin[:, None])
        keys, values = state.keys.rows, state.values.rows
        keys[:, start : start + self.count].copy_(self.k)
        values[:, start : start + self.count].copy_(self.v)
        self._index(state, start)
        complete = (start + self.count) // c.index_ratio
        if complete > c.index_blocks:
            scores = indexer.scores(
                self.index_q, state.index_keys.rows, self.weights.index_q_scale, cos, sin, complete, c.eps
            )
            self.attention.sparse(keys, values, start, scores, c.index_ratio, c.index_blocks)
        else:
            self.attention.dense(keys, values, start)
        torch.mm(self.attention.out, self.last, out=self.y)

    def _index(self, state: AttentionState, start: int) -> None:
        c = self.config
        if (start + self.count) // c.index_ratio == start // c.index_ratio:  # no block is complete
            for i, row in enumerate(self.index_rows):
                state.tail.each[(start + i) % len(state.tail.each)].copy_(row)
            return
        indexer.append(
            self.index_k,
            state.tail.rows,
            state.index_keys.rows,
            self.weights.index_k_scale,
            self.cos,
            self.sin,
            start,
            c.index_ratio,
            c.eps,
        )


class NgramBlock:
    """An n-gram layer's addition to the streams."""

    def __init__(self, rows: Rows, weights: Ngram) -> None:
        c, scratch, streams = rows.config, rows.scratch, rows.streams
        self.config, self.weights, self.streams, self.project = c, weights, streams, weights.project.t()
        self.projected = scratch("ngram.projected", weights.project.shape[0])
        key, value = self.projected[:, : c.stream_width], self.projected[:, c.stream_width :]
        self.gate = Gate(scratch, streams, key, value, weights.key_scale, weights.query_scale, c.eps)
        normed, length = scratch("ngram.normed", c.streams, c.hidden), scratch("ngram.length", c.streams, 1)
        self.norm = RmsNorm(self.gate.out, normed, length, weights.conv_scale, c.eps)
        self.conv = CausalConv(scratch, normed.view(rows.count, c.stream_width), weights.taps, c.ngram_size)
        self.passed = self.conv.out.view(streams.shape)

    def __call__(self, tokens: Tensor, ring: Ring, start: int) -> None:
        """tokens: from position 0 to the last row."""
        w = self.weights
        index = ngram.rows(
            tokens, start, w.multipliers, w.sizes, w.offsets, self.config.ngram_heads, self.config.reset_token
        )
        torch.mm(ngram.gather(w.shards, index, w.table_scale), self.project, out=self.projected)
        self.gate()
        self.norm()
        self.conv(ring.rows, ring.each, start)
        self.streams.add_(self.gate.out).add_(self.passed)


class Few:
    """The whole model, and its draft head, for one number of rows."""

    def __init__(self, config: ModelConfig, weights: Weights, count: int, cos: Tensor, sin: Tensor) -> None:
        rows = Rows(config, count, cos, sin)
        self.streams, self.head = rows.streams, weights.head
        self.layers = tuple(FewLayer(rows, layer) for layer in weights.layers)
        self.mix = rows.mix(weights.mixer)
        if weights.draft is not None:
            self.draft = FewLayer(rows, weights.draft.layer)
            self.draft_mix = rows.mix(weights.draft.mixer)

    def logits(self, streams: Tensor, mix: Mix) -> Tensor:
        """Logits [T, V] from what the last layer left."""
        self.streams.copy_(streams)
        mix()
        return linear.linear(mix.x, self.head)


class FewLayer:
    """A decoder layer; its n-gram part is called by itself."""

    def __init__(self, rows: Rows, layer: Layer) -> None:
        self.ngram = NgramBlock(rows, layer.ngram) if layer.ngram is not None else None
        self.block_mix, self.experts_mix = rows.mix(layer.block_mixer), rows.mix(layer.experts_mixer)
        self.block = (
            DeltaBlock(rows, layer.block, self.block_mix.x)
            if isinstance(layer.block, Delta)
            else AttentionBlock(rows, layer.block, self.block_mix.x)
        )
        e = layer.experts
        self.experts = Experts(
            rows.scratch,
            self.experts_mix.x,
            e.project,
            e.gate_up,
            e.down,
            e.shared_down,
            rows.config.experts_per_token,
        )
        self.from_block, self.from_experts = self.block.y[:, None], self.experts.out[:, None]

    def __call__(self, state: DeltaState | AttentionState, start: int, cos: Tensor, sin: Tensor) -> None:
        """The streams of the rows start, start + 1, ... through the layer, in place; cos, sin [T, r] of the rows."""
        self.block_mix()
        if isinstance(self.block, DeltaBlock):
            assert isinstance(state, DeltaState)
            self.block(state, start)
        else:
            assert isinstance(state, AttentionState)
            self.block(state, start, cos, sin)
        self.block_mix.inject_(self.from_block)
        self.experts_mix()
        self.experts()
        self.experts_mix.inject_(self.from_experts)


def silu_to(x: Tensor, *, out: Tensor) -> Tensor:
    """silu into a buffer."""
    return silu(out.copy_(x), inplace=True)
