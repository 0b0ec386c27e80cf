"""The kernels against their definitions, as functions of a device and of sizes.

Run interpreted on the CPU by tests/unit/test_kernels_*.py at small and odd sizes, and on a GPU at real sizes by
tests/model/test_gpu_kernels.py. `close` compares by the norm of the error over the norm of the reference.
"""

import torch
from carousel_kernels.attention import reference as attention_reference
from carousel_kernels.attention import triton as attention
from carousel_kernels.attention_input import reference as attention_input_reference
from carousel_kernels.attention_input import triton as attention_input
from carousel_kernels.block_select import reference as block_select_reference
from carousel_kernels.block_select import triton as block_select
from carousel_kernels.causal_conv import reference as causal_conv_reference
from carousel_kernels.causal_conv import triton as causal_conv
from carousel_kernels.fp8 import dequantize
from carousel_kernels.gated_delta import reference as gated_delta_reference
from carousel_kernels.gated_delta import triton as gated_delta
from carousel_kernels.head import triton as head
from carousel_kernels.hyper_connection import reference as hyper_connection_reference
from carousel_kernels.hyper_connection import triton as hyper_connection
from carousel_kernels.indexer import reference as indexer_reference
from carousel_kernels.indexer import triton as indexer
from carousel_kernels.linear import triton as linear
from carousel_kernels.mtp_input import reference as mtp_input_reference
from carousel_kernels.mtp_input import triton as mtp_input
from carousel_kernels.ngram import reference as ngram_reference
from carousel_kernels.ngram import triton as ngram
from carousel_kernels.ngram_gate import reference as ngram_gate_reference
from carousel_kernels.ngram_gate import triton as ngram_gate
from carousel_kernels.norm import reference as norm_reference
from carousel_kernels.norm import triton as norm
from carousel_kernels.rope import reference as rope
from carousel_kernels.step import reference as step_reference
from carousel_kernels.step import triton as step
from torch import Tensor

EPS = 1e-6
FP8 = torch.float8_e4m3fn


class Draw:
    """Random tensors of one device from one seed."""

    def __init__(self, device: str, seed: int = 0) -> None:
        self.device, self.generator = torch.device(device), torch.Generator(device=device).manual_seed(seed)

    def __call__(self, *shape: int, std: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        return (torch.randn(*shape, generator=self.generator, device=self.device) * std).to(dtype)

    def ids(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator, device=self.device)


def close(found: Tensor, wanted: Tensor, tolerance: float, what: str = "") -> None:
    """Fail unless |found - wanted| / |wanted| is below the tolerance; a NaN fails."""
    error = float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30))
    assert error < tolerance, f"{what}: relative error {error:.2e}, allowed {tolerance:.0e}"


def poisoned(*shape: int, device: torch.device) -> Tensor:
    """An output buffer in which an entry that nobody writes shows."""
    return torch.full(shape, torch.nan, device=device)


def linear_few(device: str, rows: int, out: int, width: int, dtype: torch.dtype) -> None:
    """FP8 weights with block scales and without."""
    draw = Draw(device)
    weight = draw(out, width, std=width**-0.5, dtype=dtype)
    x = draw(4, 2 * width)[:, :width]  # rows that are not contiguous
    for scale in (None, 1 + draw(-(-out // 128), -(-width // 128), std=0.2)) if dtype == FP8 else (None,):
        wide = weight.float() if scale is None else dequantize(weight, scale)
        got = linear.few_rows(x[:rows], weight, poisoned(rows, out, device=draw.device), scale=scale)
        close(got, x[:rows].double() @ wide.double().T, 1e-5, "few_rows")
        alone = torch.cat(
            [
                linear.few_rows(x[r : r + 1], weight, poisoned(1, out, device=draw.device), scale=scale)
                for r in range(rows)
            ]
        )
        assert torch.equal(got, alone), "a row depends on the number of rows"


def linear_many(device: str, rows: int, out: int, width: int, dtype: torch.dtype, exact: bool) -> None:
    """FP8 weights have block scales."""
    draw = Draw(device)
    weight = draw(out, width, std=width**-0.5, dtype=dtype)
    x = draw(rows, width + 16)[:, :width]
    if not exact:
        x = x.to(torch.bfloat16)
    scale = 1 + draw(-(-out // 128), -(-width // 128), std=0.2) if dtype == FP8 else None
    wide = weight if scale is None else dequantize(weight, scale)
    got = linear.many_rows(x, weight, scale=scale)
    close(got, x.double() @ wide.double().T, 1e-5, "many_rows")
    again = linear.many_rows(x[rows // 2 :], weight, scale=scale)
    assert torch.equal(got[rows // 2 :], again), "a row depends on its place"


def hyper(device: str, rows: int, n: int, width: int, rank: int, dtype: torch.dtype) -> None:
    draw = Draw(device)
    streams = draw(rows, n, width)
    scale, down = 1 + draw(n, width, std=0.1), draw(rank + n, n * width, std=(n * width) ** -0.5 * 3, dtype=dtype)
    up = draw(n * width, rank, std=rank**-0.5 * 3, dtype=dtype)
    block = draw(width, 2 * width, std=0.05, dtype=dtype)
    inner = draw(rows, 2 * width)
    wanted, amount = hyper_connection_reference.mix(streams, scale, down.float(), up.float(), EPS)
    assert amount is not None
    after = hyper_connection_reference.inject_(streams.clone(), inner @ block.float().T, amount)
    results = []
    for group in ([list(range(rows))] if rows <= 4 else []) + [[r] for r in range(min(rows, 2))]:
        part = poisoned(n, len(group), rank + n, device=draw.device)
        rstd, x = poisoned(len(group), n, device=draw.device), poisoned(len(group), width, device=draw.device)
        own = streams[group].contiguous()
        hyper_connection.mix_down(own, scale, down, part, rstd, EPS)
        amounts = poisoned(len(group), n, device=draw.device)
        hyper_connection.mix_up(own, scale, up, part, rstd, x, amounts)
        linear.few_rows_inject(inner[group], block, own, amounts)
        close(x, wanted[group], 1e-5, "mix")
        close(own, after[group], 1e-5, "inject")
        results.append((x, own))
    if rows <= 4:
        for r in range(min(rows, 2)):
            assert torch.equal(results[0][0][r], results[1 + r][0][0]), "mix depends on the number of rows"
            assert torch.equal(results[0][1][r], results[1 + r][1][0]), "inject depends on the number of rows"
    normed = hyper_connection.norm(streams, scale, EPS, torch.float32)
    low = linear.many_rows(normed, down)
    gates = linear.many_rows(torch.nn.functional.silu(low[:, :rank] / n), up)
    close(hyper_connection.blend(gates, normed, n), wanted, 1e-5, "blend")
    own = streams.clone()
    hyper_connection.inject(own, inner @ block.float().T, low[:, rank:])
    close(own, after, 1e-5, "inject many")


def delta(device: str, kh: int, vh: int, dk: int, dv: int, before: int, rows: int, lag: int, sigmoid: bool) -> None:
    """`before` rows by chunks, then steps of up to 4 rows of which the last `lag` are taken back and fed again."""
    draw = Draw(device, seed=before + rows)
    taps_n, channels, total = 4, 2 * kh * dk + vh * dv, before + rows
    width = channels + vh * dv + 2 * vh
    y = draw(total, width)
    taps, decay, bias = draw(taps_n, channels, std=0.5), -torch.exp(draw(vh, std=0.5)), draw(vh, std=0.5)
    scale = 1 + draw(dv, std=0.1)
    z, b, a = y[:, channels : channels + vh * dv], y[:, channels + vh * dv : -vh], y[:, -vh:]
    ring = torch.zeros(16, channels, device=draw.device)
    conv = causal_conv_reference.causal_conv(y[:, :channels], ring, taps, 0, 1)
    states = torch.zeros(total + 1, vh, dk, dv, device=draw.device)
    o = gated_delta_reference.recurrent(conv, a, b, decay, bias, states, 0, kh)
    wanted = norm_reference.gated_rms_norm(o, scale, z.reshape(total, -1), EPS, "sigmoid" if sigmoid else "silu")

    slots, slot = 3, 1
    rings = poisoned(slots, 8, channels, device=draw.device)
    replay = poisoned(slots, 8, channels + 2 * vh, device=draw.device)
    memory = poisoned(slots, vh, dk, dv, device=draw.device)
    applied = torch.zeros(slots, dtype=torch.int64, device=draw.device)
    if before:
        got = causal_conv.causal_conv(y[:before, :channels], rings[slot], taps, 0, 1, torch.float32)
        close(got, conv[:before], 1e-5, "convolution")
        ab = y[:before, channels + vh * dv :]
        o_got = gated_delta.chunked(
            got, ab, decay, bias, memory[slot], key_heads=kh, fresh=True, exact=device == "cpu" or sigmoid
        )
        close(o_got, o[:before], 1e-4 if device == "cpu" or sigmoid else 5e-3, "chunked output")
        close(memory[slot], states[before - 1], 1e-4 if device == "cpu" or sigmoid else 5e-3, "chunked state")
        memory[slot] = states[before - 1]
        causal_conv.keep(y[:before, :channels], rings[slot], 0)
        applied[slot] = before
    at, size = before, 1
    results = torch.empty(total, vh * dv, device=draw.device)

    def run(first: int, count: int) -> Tensor:
        rule = poisoned(count, vh, dv, device=draw.device)
        where = torch.tensor([slot, *range(first, first + count)], device=draw.device)
        own = y[first : first + count]
        gated_delta.step(own, rings, replay, memory, taps, decay, bias, rule, where, applied, key_heads=kh)
        applied[slot] = first
        return norm.gated_rms_norm(rule, scale, own[:, channels : channels + vh * dv], EPS, sigmoid, torch.float32)

    while at < total:
        count = min(size, total - at)
        out = run(at, count)
        kept = max(1, count - lag)
        results[at : at + kept] = out[:kept]
        at += kept
        size = size % 4 + 1
    close(results[before:], wanted[before:], 1e-5, "step")
    if not before:
        applied.zero_()
        single = torch.cat([run(t, 1) for t in range(total)])
        assert torch.equal(single, results), "a row of a step depends on the rows beside it or on a replay"
    where = torch.tensor([slot, total], device=draw.device)
    gated_delta.step(y[:1], rings, replay, memory, taps, decay, bias, results, where, applied, key_heads=kh, flush=True)
    close(memory[slot], states[total - 1], 1e-5, "state")


def attention_block(
    device: str, heads: int, kv: int, width: int, index_heads: int, index_dim: int, rotary: int, top: int,
    before: int, rows: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    """`before` rows by the prefill path, then `rows` <= 4 by the decode path, all against the definitions."""
    draw = Draw(device, seed=before)
    ratio, total = 4, before + rows
    capacity = -(-(total + 8) // ratio) * ratio
    y = draw(total, (2 * heads + 2 * kv) * width + (index_heads + 1) * index_dim)
    q_gate, k, v, index_q, index_k = y.split(
        [2 * heads * width, kv * width, kv * width, index_heads * index_dim, index_dim], 1
    )
    scales = tuple(1 + draw(d, std=0.1) for d in (width, width, index_dim, index_dim))
    cos, sin = rope.tables(capacity, rotary, 1e4, draw.device)
    keys, values = (torch.zeros(kv, capacity, width, device=draw.device) for _ in range(2))
    index_keys, tail = (torch.zeros(n, index_dim, device=draw.device) for n in (capacity // ratio, 8))
    attention_input_reference.append(k, v, keys, values, scales[1], cos[:total], sin[:total], 0, EPS)
    indexer_reference.append(index_k, tail, index_keys, scales[3], cos, sin, 0, ratio, EPS)
    q, gate = q_gate.view(total, heads, 2 * width).chunk(2, -1)
    q = attention_input_reference.query(q, scales[0], cos[:total], sin[:total], EPS)
    blocks_n = total // ratio
    wanted_scores = indexer_reference.scores(
        index_q.reshape(total, index_heads, index_dim), index_keys, scales[2], cos[:total], sin[:total], blocks_n, EPS
    )
    visible = torch.arange(1, total + 1, device=draw.device) // ratio

    slots, slot = 2, 1
    cache = [torch.zeros(slots, kv, capacity, width, device=draw.device, dtype=dtype) for _ in range(2)]
    tails = torch.full((slots, 8, index_dim), 3.0, device=draw.device)
    ikeys = torch.zeros(slots, capacity // ratio, index_dim, device=draw.device, dtype=dtype)
    loose = 1e-5 if dtype == torch.float32 else 6e-3

    def run(first: int, count: int, few: bool) -> Tensor:
        own = y[first : first + count]
        q_got = poisoned(count, heads, width, device=draw.device)
        iq_got = poisoned(count, index_heads, index_dim, device=draw.device)
        where = torch.tensor([slot, *range(first, first + count)], device=draw.device)
        attention_input.prepare(
            own, q_got, iq_got, cache[0], cache[1], tails, ikeys, scales, cos, sin, where,
            ratio=ratio, eps=EPS, write_tail=few,
        )  # fmt: skip
        if not few:
            causal_conv.keep(own[:, -index_dim:], tails[slot], first)
        close(q_got, q[first : first + count], 1e-5, "query")
        scores = poisoned(count, capacity // ratio, device=draw.device)
        indexer.scores(iq_got, ikeys, scores, where, top=top, ratio=ratio)
        blocks = torch.full((count, top), -7, dtype=torch.int32, device=draw.device)
        block_select.select(scores, blocks, where, ratio=ratio)
        for r in range(count):
            seen = (first + r + 1) // ratio
            if seen > top:
                close(scores[r, :seen], wanted_scores[first + r, :seen], loose, "scores")
                exact = block_select_reference.select(
                    scores[r : r + 1, :seen], torch.tensor([seen], device=draw.device), top
                )
                assert torch.equal(blocks[r].long(), exact[0]), f"row {first + r}: other blocks than the rule's"
        out = poisoned(count, heads * width, device=draw.device)
        work = None
        if few:
            parts = attention.splits(capacity, top, ratio)
            work = (
                poisoned(4, heads, parts, width, device=draw.device),
                poisoned(4, heads, parts, 2, device=draw.device),
            )
        attention.attend(q_got, own, cache[0], cache[1], blocks, out, where, ratio=ratio, work=work)
        for r in range(count):
            t = first + r
            chosen = blocks[r : r + 1].long() if (t + 1) // ratio > top else None
            wanted = attention_reference.attention(q[t : t + 1], gate[t : t + 1], keys, values, t, chosen, ratio)
            close(out[r : r + 1], wanted, loose, f"attention at {t}")
        return out

    run(0, before, few=False)
    together = run(before, rows, few=True)
    close(ikeys[slot, :blocks_n], index_keys[:blocks_n], loose, "index keys")
    alone = torch.cat([run(before + r, 1, few=True) for r in range(rows)])
    assert torch.equal(together, alone), "attention depends on the number of rows"
    assert visible.numel() == total


def ties(device: str, blocks: int, top: int) -> None:
    """A cut inside equal scores takes the lowest indices."""
    draw = Draw(device)
    scores = torch.relu(draw(3, blocks)) * (draw(3, blocks) > 0.5)
    where = torch.tensor([0, 4 * blocks - 1, 4 * (blocks - 1), 4 * top], device=draw.device)
    out = torch.full((3, top), -1, dtype=torch.int32, device=draw.device)
    block_select.select(scores, out, where, ratio=4)
    visible = (where[1:] + 1) // 4
    wanted = block_select_reference.select(scores, visible, top)
    assert torch.equal(out[:2].long(), wanted[:2])
    assert (out[2] == -1).all(), "a row that sees no more than it may keep is left alone"


def ngram_block(device: str, rows: int, n: int, width: int, dim: int, dtype: torch.dtype) -> None:
    draw = Draw(device)
    heads, grams, reset, capacity = 8, 3, 9, 64
    groups = heads * (grams - 1)
    sizes = torch.tensor([101 + 2 * i for i in range(groups)], device=draw.device)
    offsets = sizes.cumsum(0) - sizes
    height = -(-int(sizes.sum()) // 4)
    table = [draw(height, dim // groups, dtype=dtype) for _ in range(4)]
    multipliers = torch.tensor([23703573157769, 20109073645365, 8052911324071], device=draw.device)
    tokens = draw.ids(12, 2, capacity)
    shards = torch.tensor([t.data_ptr() for t in table], device=draw.device)
    scale = 0.5
    index = ngram_reference.rows(tokens[1, : 20 + rows], 0, multipliers, sizes, offsets, heads, reset)
    wanted = ngram_reference.gather([t.float() for t in table], index, scale)
    for start in (0, 1, 20):
        where = torch.tensor([1, *range(start, start + rows)], device=draw.device)
        got = ngram.gather(
            tokens, where, multipliers, sizes, offsets, shards, height, str(dtype), scale, reset,
            poisoned(rows, dim, device=draw.device),
        )  # fmt: skip
        assert torch.equal(got, wanted[start : start + rows]), f"n-gram rows from {start}"
    key_scale, query_scale, conv_scale = (1 + draw(n, width, std=0.1) for _ in range(3))
    taps, total = draw(4, n * width), 18 + rows
    y, streams = draw(total, n * width + width), draw(total, n, width)
    gated = ngram_gate_reference.gate(streams, y[:, : n * width], y[:, n * width :], key_scale, query_scale, EPS)
    normed = norm_reference.rms_norm(gated, conv_scale, EPS).view(total, -1)
    ring = torch.zeros(16, n * width, device=draw.device)
    wanted = streams + gated + causal_conv_reference.causal_conv(normed, ring, taps, 0, 3).view(gated.shape)
    rings = torch.full((2, 16, n * width), 5.0, device=draw.device)
    for first, count in ((0, 17), (17, 1), (18, rows)):
        own = streams[first : first + count].clone()
        work = (poisoned(*own.shape, device=draw.device), poisoned(*own.shape, device=draw.device))
        where = torch.tensor([1, *range(first, first + count)], device=draw.device)
        ngram_gate.inject(
            own, y[first : first + count], key_scale, query_scale, conv_scale, taps, rings, where, work,
            dilation=3, eps=EPS, keep=count <= 4,
        )  # fmt: skip
        if count > 4:
            causal_conv.keep(work[1].view(count, -1), rings[1], first)
        close(own, wanted[first : first + count], 1e-5, "n-gram injection")


def draft_input(device: str, rows: int, n: int, width: int, dtype: torch.dtype) -> None:
    draw = Draw(device)
    hidden, tokens = draw(4, n, width), draw.ids(50, 2, 32)
    embedding = draw(50, width, dtype=dtype)
    scales = 1 + draw(width, std=0.1), 1 + draw(n * width, std=0.1)
    fcs = [draw(width, width, std=width**-0.5, dtype=dtype) for _ in range(2)]
    source = torch.tensor([0, 0, 1, 3][-rows:], device=draw.device)
    where = torch.tensor([1, *[5, 5, 6, 7][-rows:]], device=draw.device)
    wanted = mtp_input_reference.fuse(
        embedding.float()[tokens[1, where[1:] + 1]], hidden[source], *scales, fcs[0].float(), fcs[1].float(), EPS
    )
    streams = poisoned(rows, n, width, device=draw.device)
    work = tuple(poisoned(*s, device=draw.device) for s in ((rows, width), (rows, n, width), (rows, width)))
    mtp_input.fuse(hidden, source, tokens, where, embedding, *scales, *fcs, streams, work, EPS)  # type: ignore[arg-type]
    close(streams, wanted, 1e-5, "draft input")


def head_block(device: str, rows: int, vocab: int, valid: int, width: int, dtype: torch.dtype) -> None:
    draw = Draw(device)
    weight, x = draw(vocab, width, dtype=dtype), draw(rows, width)
    scores = linear.few_rows(x, weight, poisoned(rows, vocab, device=draw.device))
    close(scores, x.double() @ weight.double().T, 1e-5, "logits")
    scores[0, valid - 1] = scores.max() + 1
    scores[:, valid:] = scores.max() + 5
    if rows > 1:
        scores[1, 3] = scores[1, 7] = scores[1, :valid].max() + 1
    if rows > 2:
        scores[2, valid // 2] = torch.nan
    out = torch.zeros(rows, dtype=torch.int64, device=draw.device)
    count = head.tiles(vocab)
    work = poisoned(rows, count, device=draw.device), torch.zeros(rows, count, dtype=torch.int32, device=draw.device)
    head.best(scores, valid, out, work)
    wanted = [valid - 1, 3, -1, int(scores[min(3, rows - 1), :valid].argmax())]
    assert out.tolist() == wanted[:rows]


def step_ends(device: str) -> None:
    """`step.begin` and `step.commit` against their definitions."""
    place = torch.device(device)
    for position, waiting, rows in ((9, 1, 3), (9, 3, 3), (12, 2, 4), (1, 1, 2)):
        control = torch.tensor([1, position, 5, waiting], device=place)
        tokens = torch.zeros(2, 32, dtype=torch.int64, device=place)
        where, tick = (
            torch.zeros(1 + rows, dtype=torch.int64, device=place),
            torch.zeros(1, dtype=torch.int64, device=place),
        )
        draft = tuple(torch.zeros(*s, dtype=torch.int64, device=place) for s in ((1 + rows,), (rows,), (rows, 2)))
        step.begin(control, tokens, where, tick, rows=rows, draft=draft, kept=4)  # type: ignore[arg-type]
        at, hidden = step_reference.draft_rows(position, waiting, rows)
        assert where.tolist() == [1, *range(position, position + rows)]
        assert draft[0].tolist() == [1, *at]
        assert draft[1].tolist() == [4 + h for h in hidden]
        assert draft[2].tolist() == [[1, position - 1 + i] for i in range(rows)]
        assert int(tokens[1, position]) == 5
        assert int(tick) == 1
    stops = torch.tensor([8, 9], device=place)
    for fed, chosen in (
        ([5, 6, 7], [6, 7, 3]),
        ([5, 6, 7], [6, 2, 3]),
        ([5, 1, 7], [6, 7, 3]),
        ([5, 8, 7], [8, 7, 3]),
        ([5], [6]),
    ):
        rows = len(fed)
        control = torch.tensor([1, 4, 5, 1], device=place)
        tokens = torch.zeros(2, 32, dtype=torch.int64, device=place)
        tokens[1, 4 : 4 + rows] = torch.tensor(fed, device=place)
        applied, result = (
            torch.zeros(2, dtype=torch.int64, device=place),
            torch.zeros(5, dtype=torch.int64, device=place),
        )
        step.commit(control, tokens, torch.tensor(chosen, device=place), stops, applied, result, rows=rows)
        assert result[0] == step_reference.accept(fed, chosen, {8, 9})
        assert result[1 : 1 + rows].tolist() == chosen
        assert applied.tolist() == [0, 4]
