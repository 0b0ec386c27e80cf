"""The forward pass: rows of one sequence in, streams and logits out. Owns no state and decides nothing about sequences.

Every operator is reached through its folder in `carousel_kernels`, which alone decides where it runs.
"""

import torch
from carousel_kernels import (
    attention,
    attention_input,
    block_select,
    causal_conv,
    experts,
    gated_delta,
    head,
    hyper_connection,
    indexer,
    linear,
    mtp_input,
    ngram,
    ngram_gate,
    norm,
    rope,
    router,
)
from torch import Tensor

from carousel_server.engine.config import ModelConfig
from carousel_server.engine.few_rows import MOST, Few
from carousel_server.engine.state import AttentionState, DeltaState, Ring, Slot
from carousel_server.engine.weights import Attention, Delta, Experts, Layer, Mixer, Ngram, Weights


class Model:
    """The weights with everything that does not depend on a sequence."""

    def __init__(self, config: ModelConfig, weights: Weights, *, capacity: int, device: torch.device) -> None:
        self.config, self.weights, self.device = config, weights, device
        self.cos, self.sin = rope.tables(capacity, config.rotary, config.theta, device)
        self._few: dict[int, Few] = {}  # by the number of rows, made when it first occurs

    def forward(self, slot: Slot, start: int, rows: int, *, rewindable: bool) -> Tensor:
        """Feed the tokens start .. start + rows - 1 of `slot.tokens`; returns their streams [rows, n, H].

        `rewindable` keeps the state after each of the last rows, for few rows; otherwise only after the last one.
        """
        embedded = self._embed(slot.tokens[start : start + rows])[:, None]
        if rows == 1 or (rewindable and rows <= MOST):
            return self._forward_few(slot, start, embedded)
        streams = embedded.repeat(1, self.config.streams, 1)
        for i, (layer, state) in enumerate(zip(self.weights.layers, slot.main.layers, strict=True)):
            if layer.ngram is not None:
                streams += self._ngram(layer.ngram, slot, slot.ngram[i], streams, start)
            self._layer(layer, state, streams, start, rewindable)
        return streams

    def _forward_few(self, slot: Slot, start: int, embedded: Tensor) -> Tensor:
        rows = embedded.shape[0]
        few = self._rows(rows)
        few.streams.copy_(embedded)
        cos, sin = self.cos[start : start + rows], self.sin[start : start + rows]
        for i, (layer, state) in enumerate(zip(few.layers, slot.main.layers, strict=True)):
            if layer.ngram is not None:
                layer.ngram(slot.tokens[: start + rows], slot.ngram[i], start)
            layer(state, start, cos, sin)
        return few.streams.clone()

    def _rows(self, count: int) -> Few:
        if count not in self._few:
            self._few[count] = Few(self.config, self.weights, count, self.cos, self.sin)
        return self._few[count]

    def logits(self, streams: Tensor) -> Tensor:
        """Logits [rows, V] float32 from the streams that the last layer left."""
        if streams.shape[0] <= MOST:
            few = self._rows(streams.shape[0])
            return few.logits(streams, few.mix)
        return self._head(streams, self.weights.mixer)

    def draft(self, slot: Slot, following: Tensor, hidden: Tensor, start: int) -> Tensor:
        """The draft head over the rows start, start + 1, ...: streams for `draft_logits` and the next draft.

        following [rows] int64, the token after each row; hidden [rows, n, H], the model's streams of each row, or
        the draft head's own of the row before where the model has not got that far.
        """
        layer, state, streams = self._draft_input(slot, following, hidden)
        rows = streams.shape[0]
        if rows > MOST:
            self._layer(layer, state, streams, start, rewindable=True)
            return streams
        few = self._rows(rows)
        few.streams.copy_(streams)
        few.draft(state, start, self.cos[start : start + rows], self.sin[start : start + rows])
        return few.streams.clone()

    def draft_logits(self, streams: Tensor) -> Tensor:
        """Logits [rows, V] of the draft head: what follows the token after each row."""
        assert self.weights.draft is not None
        if streams.shape[0] <= MOST:
            few = self._rows(streams.shape[0])
            return few.logits(streams, few.draft_mix)
        return self._head(streams, self.weights.draft.mixer)

    def draft_cache(self, slot: Slot, following: Tensor, hidden: Tensor, start: int) -> None:
        """As `draft`, for rows whose result nobody wants: only their keys, values and index keys."""
        layer, state, streams = self._draft_input(slot, following, hidden)
        x, _ = self._mix(streams, layer.block_mixer)
        assert isinstance(layer.block, Attention)
        self._cache(layer.block, state, linear.linear(x, layer.block.project), start)

    def _draft_input(self, slot: Slot, following: Tensor, hidden: Tensor) -> tuple[Layer, AttentionState, Tensor]:
        draft = self.weights.draft
        assert draft is not None
        assert slot.draft is not None
        state = slot.draft.layers[0]
        assert isinstance(state, AttentionState)
        streams = mtp_input.fuse(
            self._embed(following),
            hidden,
            draft.embedding_scale,
            draft.hidden_scale,
            draft.fc_embedding,
            draft.fc_hidden,
            self.config.eps,
        )
        return draft.layer, state, streams

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.weights.embedding.index_select(0, tokens).to(self.device, torch.float32)

    def _mix(self, streams: Tensor, mixer: Mixer) -> tuple[Tensor, Tensor | None]:
        return hyper_connection.mix(streams, mixer.scale, mixer.down, mixer.up, self.config.eps)

    def _head(self, streams: Tensor, mixer: Mixer) -> Tensor:
        return head.logits(self._mix(streams, mixer)[0], self.weights.head)

    def _layer(
        self, layer: Layer, state: DeltaState | AttentionState, streams: Tensor, start: int, rewindable: bool
    ) -> None:
        x, inject = self._mix(streams, layer.block_mixer)
        if isinstance(state, DeltaState):
            assert isinstance(layer.block, Delta)
            y = self._delta(layer.block, state, x, start, rewindable)
        else:
            assert isinstance(layer.block, Attention)
            y = self._attention(layer.block, state, x, start)
        assert inject is not None
        hyper_connection.inject_(streams, y, inject)
        x, inject = self._mix(streams, layer.experts_mixer)
        assert inject is not None
        hyper_connection.inject_(streams, self._experts(layer.experts, x), inject)

    def _ngram(self, weights: Ngram, slot: Slot, ring: Ring, streams: Tensor, start: int) -> Tensor:
        c = self.config
        rows, wide = streams.shape[0], c.stream_width
        index = ngram.rows(
            slot.tokens[: start + rows],
            start,
            weights.multipliers,
            weights.sizes,
            weights.offsets,
            c.ngram_heads,
            c.reset_token,
        )
        found = ngram.gather(weights.shards, index, weights.table_scale).to(self.device)
        projected = linear.linear(found, weights.project)
        key, value = projected[:, :wide], projected[:, wide:]
        gated = ngram_gate.gate(streams, key, value, weights.key_scale, weights.query_scale, c.eps)
        normed = norm.rms_norm(gated, weights.conv_scale, c.eps).view(rows, wide)
        passed = causal_conv.causal_conv(normed, ring.rows, weights.taps, start, c.ngram_size)
        return gated.add_(passed.view(gated.shape))

    def _delta(self, weights: Delta, state: DeltaState, x: Tensor, start: int, rewindable: bool) -> Tensor:
        c = self.config
        projected = linear.linear(x, weights.project)
        qkv, z, b, a = projected.split_with_sizes(
            [c.delta_channels, c.delta_width, c.delta_value_heads, c.delta_value_heads], 1
        )
        qkv = causal_conv.causal_conv(qkv, state.conv.rows, weights.taps, start, 1)
        rule = gated_delta.recurrent if rewindable or x.shape[0] == 1 else gated_delta.chunked
        o = rule(qkv, a, b, weights.decay, weights.dt_bias, state.states.rows, start, c.delta_key_heads)
        return linear.linear(norm.gated_rms_norm(o, weights.scale, z, c.eps, c.output_gate), weights.out)

    def _attention(self, weights: Attention, state: AttentionState, x: Tensor, start: int) -> Tensor:
        c = self.config
        rows = x.shape[0]
        q_gate, index_q = self._cache(weights, state, linear.linear(x, weights.project), start)
        q, gate = q_gate.view(rows, c.heads, 2 * c.head_dim).chunk(2, -1)
        here = slice(start, start + rows)
        q = attention_input.query(q, weights.q_scale, self.cos[here], self.sin[here], c.eps)
        blocks = None
        complete = (start + rows) // c.index_ratio
        if complete > c.index_blocks:
            scores = indexer.scores(
                index_q.view(rows, c.index_heads, c.index_dim),
                state.index_keys.rows,
                weights.index_q_scale,
                self.cos[here],
                self.sin[here],
                complete,
                c.eps,
            )
            visible = torch.arange(start + 1, start + rows + 1, device=self.device) // c.index_ratio
            blocks = block_select.select(scores, visible, c.index_blocks)
        mixed = attention.attention(q, gate, state.keys.rows, state.values.rows, start, blocks, c.index_ratio)
        return linear.linear(mixed, weights.out)

    def _cache(self, weights: Attention, state: AttentionState, projected: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Write keys, values and index keys of the rows; returns what is left: q with gate, and the index query."""
        c = self.config
        rows, width = projected.shape[0], c.kv_heads * c.head_dim
        q_gate, k, v, index_q, index_k = projected.split_with_sizes(
            [2 * c.heads * c.head_dim, width, width, c.index_heads * c.index_dim, c.index_dim], 1
        )
        here = slice(start, start + rows)
        attention_input.append(
            k, v, state.keys.rows, state.values.rows, weights.k_scale, self.cos[here], self.sin[here], start, c.eps
        )
        indexer.append(
            index_k,
            state.tail.rows,
            state.index_keys.rows,
            weights.index_k_scale,
            self.cos,
            self.sin,
            start,
            c.index_ratio,
            c.eps,
        )
        return q_gate, index_q

    def _experts(self, weights: Experts, x: Tensor) -> Tensor:
        projected = linear.linear(x, weights.project)
        router_logits, hidden, opening = projected.split_with_sizes(
            [self.config.experts, 2 * self.config.shared_width, 1], 1
        )
        mix, ids = router.route(router_logits, self.config.experts_per_token)
        out = experts.routed(x, mix, ids, weights.gate_up, weights.down)
        return out.add_(experts.combine(hidden, weights.shared_down, opening))
