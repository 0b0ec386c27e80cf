"""The operators' definitions against plainer ones: a loop, a sort, a sum."""

import math

import pytest
import torch
from carousel_kernels import (
    attention,
    block_select,
    causal_conv,
    gated_delta,
    indexer,
    ngram,
    norm,
    rope,
    router,
    sampling,
)
from hypothesis import given, settings
from hypothesis import strategies as st


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("scores", "visible", "top", "chosen"),
    [
        ([1, 3, 2, 5], 4, 2, [1, 3]),
        ([0, 0, 0, 0, 0], 5, 3, [0, 1, 2]),  # all equal: the lowest indices
        ([2, 0, 1, 0, 1, 0], 6, 2, [0, 2]),  # the cut falls among equals
        ([2, 0, 0, 0, 1, 0], 6, 4, [0, 1, 2, 4]),
        ([9, 9, 1, 9], 3, 2, [0, 1]),  # the last block is not visible
        ([1, 2, 3, 4], 2, 3, [0, 1, 4]),  # fewer than top: the rest is the number of blocks
        ([1, 2], 2, 5, [0, 1]),
    ],
)
def test_blocks_are_chosen_by_score_and_then_by_lowest_index(scores, visible, top, chosen):
    found = block_select.select(torch.tensor([scores], dtype=torch.float32), torch.tensor([visible]), top)
    assert found.tolist() == [chosen]


def test_equal_router_logits_choose_the_lower_expert():
    weights, ids = router.route(torch.tensor([[1.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 5.0]]), 2)
    assert ids.tolist() == [[1, 2], [3, 0]]
    assert torch.allclose(weights.sum(1), torch.ones(2))
    every = torch.softmax(torch.tensor([0.0, 0.0, 0.0, 5.0]), 0)
    assert torch.allclose(weights[1], every[[3, 0]] / every[[3, 0]].sum())


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("start", [0, 5])
def test_the_chunked_delta_rule_is_the_recurrent_one(rows, start):
    g, kh, vh, dk, dv = generator(rows), 2, 6, 12, 20
    qkv = torch.randn(rows, 2 * kh * dk + vh * dv, generator=g)
    a, b = torch.randn(rows, vh, generator=g), torch.randn(rows, vh, generator=g)
    decay, bias = -torch.rand(vh, generator=g) * 2, torch.randn(vh, generator=g)
    before = torch.zeros(4, vh, dk, dv)
    if start:
        before[(start - 1) % 4] = torch.randn(vh, dk, dv, generator=g)
    slow, fast = before.clone(), before.clone()
    expected = gated_delta.recurrent(qkv, a, b, decay, bias, slow, start, kh)
    found = gated_delta.chunked(qkv, a, b, decay, bias, fast, start, kh)
    last = (start + rows - 1) % 4
    assert torch.allclose(found, expected, atol=2e-5)
    assert torch.allclose(fast[last], slow[last], atol=2e-5)


def test_the_delta_rule_keeps_the_state_after_each_row():
    g, kh, vh, dk, dv = generator(3), 1, 2, 4, 4
    qkv = torch.randn(3, 2 * kh * dk + vh * dv, generator=g)
    a, b = torch.randn(3, vh, generator=g), torch.randn(3, vh, generator=g)
    decay, bias, states = -torch.rand(vh, generator=g), torch.zeros(vh), torch.zeros(4, vh, dk, dv)
    gated_delta.recurrent(qkv, a, b, decay, bias, states, 0, kh)
    for rows in (1, 2, 3):
        alone = torch.zeros(4, vh, dk, dv)
        gated_delta.recurrent(qkv[:rows], a[:rows], b[:rows], decay, bias, alone, 0, kh)
        assert torch.equal(states[rows - 1], alone[rows - 1])


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("pieces", [[20], [1] * 20, [7, 1, 1, 11], [2, 3, 15]])
def test_a_convolution_in_pieces_is_the_convolution_of_the_whole(dilation, pieces):
    x, taps = torch.randn(20, 5, generator=generator()), torch.randn(4, 5, generator=generator(1))
    padded = torch.cat([torch.zeros(3 * dilation, 5), x])
    whole = torch.nn.functional.silu(sum(padded[j * dilation : j * dilation + 20] * taps[j] for j in range(4)))
    ring, out, at = torch.zeros(16, 5), [], 0
    for count in pieces:
        out.append(causal_conv.causal_conv(x[at : at + count], ring, taps, at, dilation))
        at += count
    assert torch.allclose(torch.cat(out), whole, atol=1e-6)


def test_rows_of_a_convolution_can_be_taken_back():
    x, taps, ring = (
        torch.randn(12, 3, generator=generator()),
        torch.randn(4, 3, generator=generator(1)),
        torch.zeros(8, 3),
    )
    expected = causal_conv.causal_conv(x, torch.zeros(8, 3), taps, 0, 1)
    causal_conv.causal_conv(x[:6], ring, taps, 0, 1)
    causal_conv.causal_conv(torch.full((4, 3), 99.0), ring, taps, 6, 1)  # four drafts, of which none stays
    assert torch.allclose(causal_conv.causal_conv(x[6:], ring, taps, 6, 1), expected[6:], atol=1e-6)


@pytest.mark.parametrize("pieces", [[23], [1] * 23, [3, 5, 15], [2, 2, 19]])
def test_index_keys_in_pieces_are_those_of_the_whole(pieces):
    ratio, raw, scale = 4, torch.randn(23, 8, generator=generator()), torch.rand(8, generator=generator(1)) + 0.5
    cos, sin = rope.tables(32, 4, 1e4, torch.device("cpu"))
    keys, tail, at = torch.zeros(8, 8), torch.zeros(8, 8), 0
    for count in pieces:
        indexer.append(raw[at : at + count], tail, keys, scale, cos, sin, at, ratio, 1e-6)
        at += count
    for block in range(5):
        mean = norm.rms_norm(raw[4 * block : 4 * block + 4].mean(0), scale, 1e-6)
        expected = rope.rotate_(mean[None, None].clone(), cos[4 * block, None], sin[4 * block, None])[0, 0]
        assert torch.allclose(keys[block], expected, atol=1e-6)
    assert not keys[5:].any()


@pytest.mark.parametrize("rows", [1, 3, 300])
def test_attention_sees_chosen_blocks_and_the_open_tail_and_nothing_else(rows):
    g, heads, kv, d, ratio, start = generator(rows), 4, 2, 8, 4, 10
    total = start + rows
    q, gate = torch.randn(rows, heads, d, generator=g), torch.randn(rows, heads, d, generator=g)
    keys, values = torch.randn(kv, total + 5, d, generator=g), torch.randn(kv, total + 5, d, generator=g)
    scores = torch.rand(rows, total // ratio, generator=g)
    visible = torch.arange(start + 1, total + 1) // ratio
    blocks = block_select.select(scores, visible, 2)
    for chosen in (None, blocks):
        found = attention.attention(q, gate, keys, values, start, chosen, ratio).view(rows, heads, d)
        for t in sorted({0, rows // 2, rows - 1}):
            at = list(range(start + t + 1))
            if chosen is not None:
                seen = int(visible[t])
                at = [p for p in at if p >= seen * ratio or p // ratio in chosen[t].tolist()]
            for h in range(heads):
                weights = torch.softmax(keys[h // 2, at] @ q[t, h] / math.sqrt(d), 0)
                expected = (weights @ values[h // 2, at]) * torch.sigmoid(gate[t, h])
                assert torch.allclose(found[t, h], expected, atol=1e-5)


@given(st.lists(st.sampled_from([1, 2, 9]), min_size=1, max_size=12), st.integers(0, 11))
@settings(deadline=None)
def test_ngram_rows_reset_at_the_end_of_a_text_and_do_not_depend_on_the_split(ids, split):
    multipliers, sizes, offsets = [7, 5, 3], [11, 13, 17, 19], [0, 11, 24, 41]
    expected = []
    for t in range(len(ids)):
        context, closed = [ids[t]], False
        for back in (1, 2):
            closed = closed or t - back < 0 or ids[t - back] == 9
            context.append(9 if closed else ids[t - back])
        two = context[0] * 7 ^ context[1] * 5
        three = two ^ context[2] * 3
        expected.append([h % s + o for h, s, o in zip((two, two, three, three), sizes, offsets, strict=True)])
    constants = (torch.tensor(multipliers), torch.tensor(sizes), torch.tensor(offsets), 2, 9)
    split = min(split, len(ids) - 1)
    tokens = torch.tensor(ids)
    found = [] if split == 0 else ngram.rows(tokens[:split], 0, *constants).tolist()
    assert found + ngram.rows(tokens, split, *constants).tolist() == expected


def test_shards_of_a_table_are_one_table():
    table = torch.randn(12, 3, generator=generator())
    index = torch.tensor([[0, 5], [11, 4]])
    assert torch.equal(ngram.gather(table.chunk(4), index, 1.0), ngram.gather([table], index, 1.0))


def plain_choice(x, temperature, top_k, top_p, min_p, uniform):
    """The definition once more, one id at a time."""
    values = [v / temperature for v in x]
    top = max(values)
    p = {i: math.exp(v - top) for i, v in enumerate(values)}
    total = sum(p.values())
    p = {i: v / total for i, v in p.items()}
    order = sorted(p, key=lambda i: (-p[i], i))
    if top_k:
        order = order[:top_k]
    if top_p < 1:
        kept, mass, whole = [], 0.0, sum(p[i] for i in order)
        for i in order:
            kept.append(i)
            mass += p[i]
            if mass >= top_p * whole:
                break
        order = kept
    order = [i for i in order if p[i] >= min_p * max(p[j] for j in order)]
    whole, mass = sum(p[i] for i in order), 0.0
    for i in sorted(order):
        mass += p[i]
        if mass > uniform * whole:
            return i
    return max(order)


@given(
    st.lists(st.sampled_from([-3.0, -0.5, 0.0, 1.0, 1.5, 4.0]), min_size=1, max_size=9),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.integers(0, 10),
    st.sampled_from([0.05, 0.5, 0.77, 0.95, 1.0]),
    st.sampled_from([0.0, 0.1, 0.6]),
    st.sampled_from([0.0, 0.123, 0.481, 0.777, 0.99999994]),
)
@settings(deadline=None, max_examples=300, derandomize=True)
def test_a_choice_is_what_its_definition_says(x, temperature, top_k, top_p, min_p, uniform):
    found = sampling.choose(
        torch.tensor(x), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, uniform=uniform
    )
    assert int(found) == plain_choice(x, temperature, top_k, top_p, min_p, uniform)


def test_draws_over_all_uniforms_follow_the_probabilities():
    x = torch.tensor([0.0, math.log(2.0), math.log(5.0), -torch.inf])
    counts = [0] * 4
    for i in range(800):
        counts[int(sampling.choose(x, temperature=1.0, uniform=(i + 0.5) / 800))] += 1
    assert counts == [100, 200, 500, 0]


def test_temperature_0_takes_the_lowest_of_the_best_and_extreme_settings_keep_one():
    x = torch.tensor([1.0, 7.0, 7.0, 2.0])
    assert int(sampling.choose(x, temperature=0.0, uniform=0.9)) == 1
    assert int(sampling.choose(x, temperature=1e-6, uniform=0.0)) == 1
    assert int(sampling.choose(x, temperature=1.0, top_p=1e-9, uniform=0.99)) == 1
    assert int(sampling.choose(x, temperature=1.0, top_k=1, uniform=0.99)) == 1


def test_adjustments_come_in_their_order_and_leave_the_logits_alone():
    logits = torch.tensor([2.0, -2.0, 1.0, 0.5, 9.0])
    found = sampling.adjust(
        logits,
        4,
        mask=torch.tensor([True, True, True, False, True]),
        bias=torch.tensor([0.0, 0.0, 3.0, 100.0, 0.0]),
        counts=torch.tensor([2, 1, 0, 0, 5], dtype=torch.int32),
        repetition=2.0,
        frequency=0.25,
        presence=0.5,
    )
    assert found.tolist() == [2.0 / 2 - 0.5 - 0.5, -2.0 * 2 - 0.25 - 0.5, 4.0, -math.inf]
    assert logits.tolist() == [2.0, -2.0, 1.0, 0.5, 9.0]


def test_log_probabilities_are_of_the_raw_logits_over_the_valid_ids():
    logits = torch.tensor([1.0, 3.0, 3.0, 50.0])
    logprob, top = sampling.logprobs(logits, 3, 0, 2)
    expected = torch.log_softmax(logits[:3], 0).tolist()
    assert logprob == pytest.approx(expected[0])
    assert [token for token, _ in top] == [1, 2]
    assert [value for _, value in top] == pytest.approx(expected[1:])
