"""The operators that are bound to buffers against their definitions, for every number of rows of a decode step."""

import pytest
import torch
from carousel_kernels import (
    attention,
    attention_input,
    block_select,
    causal_conv,
    experts,
    gated_delta,
    hyper_connection,
    linear,
    rope,
    router,
)
from carousel_kernels.attention.few_rows import Attention
from carousel_kernels.attention_input.few_rows import Turned
from carousel_kernels.causal_conv.few_rows import CausalConv
from carousel_kernels.experts.few_rows import Experts
from carousel_kernels.gated_delta.few_rows import Recurrent
from carousel_kernels.hyper_connection.few_rows import Mix
from carousel_kernels.scratch import Scratch
from carousel_server.engine.arena import ALIGNED, RESERVED, Arena

ROWS = pytest.mark.parametrize("rows", [1, 2, 3, 4])
EPS = 1e-6


def draw(seed, *shapes):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g) for shape in shapes]


def assert_close(found, expected):
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=2e-6, rtol=2e-5), (found - expected).abs().max()


@ROWS
def test_a_mix_reads_the_streams_and_adds_to_them(rows):
    n, width, rank = 4, 24, 6
    streams, scale, down, up, y = draw(
        rows, (rows, n, width), (n, width), (rank + n, n * width), (n * width, rank), (rows, width)
    )
    expected, inject = hyper_connection.mix(streams, scale, down, up, EPS)
    added = hyper_connection.inject_(streams.clone(), y, inject)
    mix = Mix(Scratch(rows), streams, scale, down, up, EPS)
    for _ in range(2):  # a second call does not see the first
        mix()
        assert_close(mix.x, expected)
    mix.inject_(y[:, None])
    assert_close(streams, added)


@ROWS
@pytest.mark.parametrize("dilation", [1, 3])
def test_a_convolution_step_by_step_is_that_of_the_whole(rows, dilation):
    x, taps = draw(rows, (6 * rows, 5), (4, 5))
    expected = causal_conv.causal_conv(x, torch.zeros(16, 5), taps, 0, dilation)
    ring, buffer = torch.zeros(16, 5), torch.empty(rows, 5)
    conv = CausalConv(Scratch(rows), buffer, taps, dilation)
    for start in range(0, 6 * rows, rows):
        buffer.copy_(x[start : start + rows])
        conv(ring, ring.unbind(0), start)
        assert_close(conv.out, expected[start : start + rows])


@ROWS
@pytest.mark.parametrize("start", [0, 5])
def test_the_delta_rule_leaves_the_same_output_and_states(rows, start):
    kh, vh, dk, dv = 2, 6, 8, 10
    qkv, a, b, bias, states = draw(rows, (rows, 2 * kh * dk + vh * dv), (rows, vh), (rows, vh), (vh,), (4, vh, dk, dv))
    decay = -torch.rand(vh, generator=torch.Generator().manual_seed(1))
    kept = states.clone()
    expected = gated_delta.recurrent(qkv, a, b, decay, bias, states, start, kh)
    rule = Recurrent(Scratch(rows), qkv, a, b, decay, bias, kh, dk)
    rule(kept.unbind(0), start)
    assert_close(rule.out, expected)
    assert_close(kept, states)


@ROWS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_of_a_few_rows_are_the_chosen_ones_of_each_row(rows, dtype):
    width, count, inner, shared, top = 16, 8, 12, 20, 3
    x, project, gate_up, down, shared_down = draw(
        rows,
        (rows, width),
        (count + 2 * shared + 1, width),
        (count, 2 * inner, width),
        (count, width, inner),
        (width, shared),
    )
    project[1] = project[0]  # equal logits: the lower id
    gate_up, down = gate_up.to(dtype).unbind(0), down.to(dtype).unbind(0)
    logits, hidden, opening = linear.linear(x, project).split([count, 2 * shared, 1], 1)
    expected = experts.routed(x, *router.route(logits, top), gate_up, down)
    expected += experts.combine(hidden, shared_down, opening)
    bound = Experts(Scratch(rows), x, project, gate_up, down, shared_down, top)
    for _ in range(2):
        bound()
        assert torch.allclose(bound.out, expected, atol=1e-4, rtol=1e-5)


@ROWS
def test_queries_and_keys_are_normed_and_rotated_and_attend_to_what_is_before_them(rows):
    heads, kv, d, rotary, start = 4, 2, 16, 8, 9
    q_gate, k, v, q_scale, k_scale, keys, values = draw(
        rows, (rows, heads, 2 * d), (rows, kv, d), (rows, kv, d), (d,), (d,), (kv, 32, d), (kv, 32, d)
    )
    q, gate = q_gate.chunk(2, -1)
    cos, sin = (t[start : start + rows] for t in rope.tables(32, rotary, 1e4, torch.device("cpu")))
    turned = Turned(Scratch(rows), q, k, q_scale, k_scale, rotary, EPS)
    turned(cos[:, None], sin[:, None])
    query = attention_input.query(q, q_scale, cos, sin, EPS)
    attention_input.append(k.flatten(1), v.flatten(1), keys, values, k_scale, cos, sin, start, EPS)
    assert_close(turned.q, query)
    assert_close(turned.k, keys[:, start : start + rows].transpose(0, 1))
    bound = Attention(Scratch(rows), turned.q, gate, kv)
    bound.dense(keys, values, start)
    assert_close(bound.out, attention.attention(query, gate, keys, values, start, None, 4))
    (scores,) = draw(9, (rows, (start + rows) // 4))
    scores.relu_()  # equal scores occur
    visible = torch.arange(start + 1, start + rows + 1) // 4
    for top in (1, 2, 5):
        blocks = block_select.select(scores, visible, top)
        bound.sparse(keys, values, start, scores, 4, top)
        assert_close(bound.out, attention.attention(query, gate, keys, values, start, blocks, 4))


def test_an_arena_keeps_matrices_apart_aligned_and_contiguous():
    arena, sources = Arena(), draw(0, (3, 5), (7, 2, 9), (1, RESERVED // 4 + 8), (2, 3))
    kept = [arena.keep(source.mT) for source in sources]
    for source, copy in zip(sources, kept, strict=True):
        assert torch.equal(copy, source.mT)
        assert copy.is_contiguous()
        assert copy.data_ptr() % ALIGNED == 0
