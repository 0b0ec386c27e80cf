"""Gated attention on the GPU over all keys or over chosen blocks: splits of the keys, then their combination.

The splits are fixed by the position of the row alone, so a row's result does not depend on the rows beside it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import INTERPRETED, PDL, chain, when


@triton.jit
def _attend(
    p_q,
    p_keys,
    p_values,
    p_blocks,
    p_acc,
    p_stat,
    p_where,
    CTX,
    NH: tl.constexpr,
    KVH: tl.constexpr,
    D: tl.constexpr,
    TOP: tl.constexpr,
    RATIO: tl.constexpr,
    SPLITS: tl.constexpr,
    PER: tl.constexpr,
    EXACT: tl.constexpr,
    BG: tl.constexpr,
    BJ: tl.constexpr,
    BD: tl.constexpr,
):
    chain()
    i_r, i_h, i_s = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    G: tl.constexpr = NH // KVH
    slot, t = tl.load(p_where), tl.load(p_where + 1 + i_r)
    seen = (t + 1) // RATIO
    sparse = seen > TOP
    count = tl.where(sparse, TOP * RATIO + t + 1 - seen * RATIO, t + 1).to(tl.int32)
    first = i_s * PER * BJ
    if first < count:
        o_g, o_d, o_j = tl.arange(0, BG), tl.arange(0, BD), tl.arange(0, BJ)
        m_g, m_d = o_g < G, o_d < D
        p_b = p_q + (i_r * NH + i_h * G + o_g)[:, None] * D + o_d[None, :]
        b_q = tl.load(p_b, mask=m_g[:, None] & m_d[None, :], other=0.0) * (1.0 / tl.sqrt(D * 1.0))
        base = (slot * KVH + i_h) * CTX
        b_m = tl.full([BG], -float("inf"), tl.float32)
        b_l = tl.zeros([BG], tl.float32)
        b_o = tl.zeros([BG, BD], tl.float32)
        for j in range(first, tl.minimum(first + PER * BJ, count), BJ):
            o_n = j + o_j
            m_n = o_n < count
            inside = when(o_n < TOP * RATIO, sparse)
            b_b = tl.load(p_blocks + i_r * TOP + o_n // RATIO, mask=m_n & inside, other=0)
            tail = (seen * RATIO).to(tl.int32) + o_n - TOP * RATIO
            o_p = tl.where(inside, b_b * RATIO + o_n % RATIO, tl.where(when(o_n >= 0, sparse), tail, o_n))
            p_k = (base + o_p)[:, None] * D + o_d[None, :]
            m_k = m_n[:, None] & m_d[None, :]
            b_k = tl.load(p_keys + p_k, mask=m_k, other=0.0)
            b_v = tl.load(p_values + p_k, mask=m_k, other=0.0)
            if EXACT:
                b_s = tl.dot(b_q, tl.trans(b_k.to(tl.float32)), input_precision="ieee")
            else:  # the query as two bf16 parts: its rounding would be the largest error here
                high = b_q.to(tl.bfloat16)
                low = (b_q - high.to(tl.float32)).to(tl.bfloat16)
                b_s = tl.dot(high, tl.trans(b_k)) + tl.dot(low, tl.trans(b_k))
            b_s = tl.where(m_n[None, :], b_s, -float("inf"))
            b_new = tl.maximum(b_m, tl.max(b_s, 1))
            b_p = tl.exp(b_s - b_new[:, None])
            fade = tl.exp(b_m - b_new)
            b_l = b_l * fade + tl.sum(b_p, 1)
            b_o = b_o * fade[:, None]
            if EXACT:
                b_o += tl.dot(b_p, b_v.to(tl.float32), input_precision="ieee")
            else:
                high = b_p.to(tl.bfloat16)
                low = (b_p - high.to(tl.float32)).to(tl.bfloat16)
                b_o += tl.dot(high, b_v) + tl.dot(low, b_v)
            b_m = b_new
        o_h = (i_r * NH + i_h * G + o_g) * SPLITS + i_s
        tl.store(p_stat + o_h * 2, b_m, mask=m_g)
        tl.store(p_stat + o_h * 2 + 1, b_l, mask=m_g)
        tl.store(p_acc + o_h[:, None] * D + o_d[None, :], b_o, mask=m_g[:, None] & m_d[None, :])


@triton.jit
def _combine(
    p_acc,
    p_stat,
    p_gate,
    p_out,
    p_where,
    stride_gate,
    NH: tl.constexpr,
    D: tl.constexpr,
    TOP: tl.constexpr,
    RATIO: tl.constexpr,
    SPLITS: tl.constexpr,
    SIZE: tl.constexpr,
    BS: tl.constexpr,
    BD: tl.constexpr,
):
    chain()
    i_r, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t = tl.load(p_where + 1 + i_r)
    seen = (t + 1) // RATIO
    count = tl.where(seen > TOP, TOP * RATIO + t + 1 - seen * RATIO, t + 1)
    o_s, o_d = tl.arange(0, BS), tl.arange(0, BD)
    m_s, m_d = (o_s < SPLITS) & (o_s * SIZE < count), o_d < D
    o_h = (i_r * NH + i_h) * SPLITS + o_s
    b_m = tl.load(p_stat + o_h * 2, mask=m_s, other=-float("inf"))
    b_l = tl.load(p_stat + o_h * 2 + 1, mask=m_s, other=0.0)
    b_w = tl.exp(b_m - tl.max(b_m))
    b_a = tl.load(p_acc + o_h[:, None] * D + o_d[None, :], mask=m_s[:, None] & m_d[None, :], other=0.0)
    b_o = tl.sum(b_a * b_w[:, None], 0) / tl.sum(b_l * b_w)
    b_g = tl.load(p_gate + i_r * stride_gate + i_h * 2 * D + D + o_d, mask=m_d, other=0.0)
    tl.store(p_out + (i_r * NH + i_h) * D + o_d, (b_o * tl.sigmoid(b_g)).to(p_out.dtype.element_ty), mask=m_d)


def splits(capacity: int, top: int, ratio: int) -> int:
    """Parts of a decode row's keys, 64 keys each at most: what `attend` needs room for."""
    return -(-min(capacity, (top + 1) * ratio - 1) // 64)


def attend(
    q: Tensor,
    y: Tensor,
    keys: Tensor,
    values: Tensor,
    blocks: Tensor,
    out: Tensor,
    where: Tensor,
    *,
    ratio: int,
    work: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """`softmax(q . k / sqrt(d)) v * sigmoid(gate)` of the rows at positions where[1:] in slot where[0].

    q [T, h, d] fp32; y [T, >= 2 h d] holds the gates behind each query; keys, values [slots, h_kv, capacity, d];
    blocks [T, top] int32 from block_select, read for rows that see more than `top` blocks; out [T, h * d].
    With work = (acc [R, h, splits, d], stat [R, h, splits, 2]) fp32 the keys are split (decode); without, one program
    walks them (prefill). fp32 caches use IEEE products, bf16 ones tensor cores with two-part operands.
    """
    rows, heads, width = q.shape
    _, kv, context, _ = keys.shape
    top = blocks.shape[1]
    most = splits(context, top, ratio)
    if work is None:
        acc = torch.empty(rows, heads, 1, width, dtype=torch.float32, device=q.device)
        stat = torch.empty(rows, heads, 1, 2, dtype=torch.float32, device=q.device)
        parts, per = 1, most
    else:
        acc, stat = work
        parts, per = most, 1
        if acc.shape[2] != most or acc.shape[0] < rows:
            raise ValueError(f"work for {acc.shape[0]} rows and {acc.shape[2]} splits; {rows} and {most} are needed")
    exact = keys.dtype == torch.float32
    bd = triton.next_power_of_2(width)
    if INTERPRETED and work is None:
        per, bj = 1, triton.next_power_of_2(most * 64)
    else:
        bj = 64
    _attend[(rows, kv, parts)](
        q, keys, values, blocks, acc, stat, where, context,
        NH=heads, KVH=kv, D=width, TOP=top, RATIO=ratio, SPLITS=parts, PER=per, EXACT=exact,
        BG=max(16, triton.next_power_of_2(heads // kv)), BJ=bj, BD=bd, launch_pdl=PDL, num_warps=4, num_stages=2,
    )  # fmt: skip
    _combine[(rows, heads)](
        acc, stat, y, out, where, y.stride(0),
        NH=heads, D=width, TOP=top, RATIO=ratio, SPLITS=parts, SIZE=per * bj,
        BS=triton.next_power_of_2(parts), BD=bd, launch_pdl=PDL, num_warps=4,
    )  # fmt: skip
    return out
