"""Routed and shared experts on the GPU: few rows by slot list (decode), many rows grouped by expert (prefill).

An expert is one block of 3 * I * H values in a pool slot: gate rows, up rows, then down. A weight tile is read by one
program, which serves every row.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.router.triton import Residency, Routes
from carousel_kernels.row_dot import (
    INTERPRETED,
    LANES,
    PDL,
    chain,
    chunk,
    columns,
    dot_fours,
    load_chunk,
    load_rows,
    load_tile,
    silu,
    tile,
)

GATE_UP, DOWN = 2, 8  # rows of weights of a program, which is one warp
BLOCK = LANES  # values a side of an FP8 scale block


@dataclass(frozen=True)
class Slab:
    """One layer's experts on the device."""

    slots: Tensor  # [slots, 3 * I * H]; slot numbers beyond it reach the staging area behind the whole pool
    scales: Tensor | None  # [E, blocks of gate | up | down] fp32, for FP8 values; always resident
    width: int  # I


@triton.jit
def _gate_up(
    p_x,
    p_slab,
    p_scales,
    p_hidden,
    p_head,
    p_experts,
    p_slots,
    p_rows,
    stride_x,
    H: tl.constexpr,
    I: tl.constexpr,
    R: tl.constexpr,
    FP8: tl.constexpr,
    BN: tl.constexpr,
    C: tl.constexpr,
):
    chain()
    i_n, i_u = tl.program_id(0), tl.program_id(1)
    distinct, slot = tl.load(p_head), tl.load(p_slots + i_u).to(tl.int64)
    expert, rows = tl.load(p_experts + i_u), tl.load(p_rows + i_u)
    if i_u < distinct:
        o_n = i_n * BN + tl.arange(0, BN)
        m_n = o_n < I
        o_c = columns(C)
        KB: tl.constexpr = (H + C - 1) // C
        NB: tl.constexpr = (I + C - 1) // C
        p_g = p_slab + slot * (3 * I * H) + tl.minimum(o_n, I - 1)[:, None] * H + o_c[None, :]
        p_s = p_scales + expert * (3 * NB * KB) + (i_n * BN // C) * KB
        for r in range(R):
            if (rows >> r) & 1 == 1:
                # again for each row, then from a cache: held over the rows they would leave room for half the programs
                g = load_rows(p_g, o_c, H, C)
                u = load_rows(p_g + I * H, o_c, H, C)
                b_g = tl.zeros([BN, C // 4], tl.float32)
                b_u = tl.zeros([BN, C // 4], tl.float32)
                for c in tl.static_range(KB):
                    b_x = load_chunk(p_x + r * stride_x, o_c, c, H, C)
                    s_g, s_u = 1.0, 1.0
                    if FP8:
                        s_g, s_u = tl.load(p_s + c), tl.load(p_s + NB * KB + c)
                    b_g = tl.fma(dot_fours(g[c], b_x), s_g, b_g)
                    b_u = tl.fma(dot_fours(u[c], b_x), s_u, b_u)
                tl.store(p_hidden + (i_u * 4 + r) * I + o_n, silu(tl.sum(b_g, 1)) * tl.sum(b_u, 1), mask=m_n)


@triton.jit
def _down(
    p_hidden,
    p_slab,
    p_scales,
    p_part,
    p_head,
    p_experts,
    p_slots,
    p_rows,
    p_y,
    p_shared,
    stride_y,
    H: tl.constexpr,
    I: tl.constexpr,
    IS: tl.constexpr,
    E: tl.constexpr,
    R: tl.constexpr,
    MOST: tl.constexpr,
    FP8: tl.constexpr,
    BN: tl.constexpr,
    C: tl.constexpr,
    CS: tl.constexpr,
):
    # routing and fetching are complete before the kernel ahead of this one begins: weights may be loaded before `chain`
    i_n, i_u = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BN + tl.arange(0, BN)
    m_n = o_n < H
    o_w = tl.minimum(o_n, H - 1)[:, None]
    if i_u == 0:  # the shared expert, first for it takes longest; its gate and up rows came with the router's product
        p_o = p_part + MOST * 4 * H + o_n
        o_s = columns(CS)
        chain()
        for r in range(R):
            p_g = p_y + r * stride_y + E
            b_y = tl.zeros([BN, CS // 4], tl.float32)
            for c in tl.static_range((IS + CS - 1) // CS):
                b_w = load_tile(p_shared + o_w * IS + o_s[None, :], o_s, c, IS, CS)
                b_h = silu(load_chunk(p_g, o_s, c, IS, CS)) * load_chunk(p_g + IS, o_s, c, IS, CS)
                b_y += dot_fours(b_w, b_h)
            tl.store(p_o + r * H, tl.sum(b_y, 1), mask=m_n)
    elif i_u <= tl.load(p_head):
        i_u -= 1
        p_o = p_part + i_u * 4 * H + o_n
        slot, rows = tl.load(p_slots + i_u).to(tl.int64), tl.load(p_rows + i_u)
        o_c = columns(C)
        KB: tl.constexpr = (I + C - 1) // C
        NB: tl.constexpr = (H + C - 1) // C
        p_w = p_slab + slot * (3 * I * H) + 2 * I * H + o_w * I + o_c[None, :]
        if R == 1:  # before the wait; for more rows as in `_gate_up`
            w = load_rows(p_w, o_c, I, C)
        p_s = p_scales + tl.load(p_experts + i_u) * (3 * NB * KB) + 2 * NB * KB + (i_n * BN // C) * KB
        chain()
        for r in range(R):
            if (rows >> r) & 1 == 1:
                if R > 1:
                    w = load_rows(p_w, o_c, I, C)
                b_y = tl.zeros([BN, C // 4], tl.float32)
                for c in tl.static_range(KB):
                    scale = 1.0
                    if FP8:
                        scale = tl.load(p_s + c)
                    b_y = tl.fma(dot_fours(w[c], load_chunk(p_hidden + (i_u * 4 + r) * I, o_c, c, I, C)), scale, b_y)
                tl.store(p_o + r * H, tl.sum(b_y, 1), mask=m_n)


@triton.jit
def _combine(
    p_part,
    p_streams,
    p_amount,
    p_y,
    p_head,
    p_ids,
    p_weights,
    p_rank,
    p_misses,
    p_table,
    p_owner,
    stride_y,
    H: tl.constexpr,
    IS: tl.constexpr,
    E: tl.constexpr,
    TOP: tl.constexpr,
    R: tl.constexpr,
    MOST: tl.constexpr,
    STREAMS: tl.constexpr,
    POOLED: tl.constexpr,
    BT: tl.constexpr,
    BH: tl.constexpr,
):
    i_h, i_r = tl.program_id(0), tl.program_id(1)
    o_i, o_h = tl.arange(0, BT), i_h * BH + tl.arange(0, BH)
    m_i, m_h = o_i < TOP, o_h < H
    b_e = tl.load(p_ids + i_r * TOP + o_i, mask=m_i, other=0)
    b_w = tl.load(p_weights + i_r * TOP + o_i, mask=m_i, other=0.0)
    b_w = b_w / tl.sum(b_w)
    b_u = tl.load(p_rank + b_e, mask=m_i, other=0)
    p_p = p_part + (b_u * 4 + i_r)[:, None] * H + o_h[None, :]
    chain()
    b_p = tl.load(p_p, mask=m_i[:, None] & m_h[None, :], other=0.0)
    b_y = tl.sum(tl.fma(b_p, b_w[:, None], 0.0), 0)
    opening = tl.sigmoid(tl.load(p_y + i_r * stride_y + E + 2 * IS))
    b_y = tl.fma(tl.load(p_part + (MOST * 4 + i_r) * H + o_h, mask=m_h, other=0.0), opening, b_y)
    for c in tl.static_range(STREAMS):
        p_s = p_streams + (i_r * STREAMS + c) * H + o_h
        b_s = tl.fma(b_y, tl.load(p_amount + i_r * STREAMS + c), tl.load(p_s, mask=m_h, other=0.0))
        tl.store(p_s, b_s, mask=m_h)
    if POOLED:  # the copies into the slots are complete: they may be found from now on
        if (i_h == 0) & (i_r == 0):
            for i in range(tl.load(p_head + 1)):
                e, slot = tl.load(p_misses + i * 3), tl.load(p_misses + i * 3 + 1)
                kept = tl.load(p_misses + i * 3 + 2) == 1
                tl.store(p_table + e, slot, mask=kept)
                tl.store(p_owner + slot, e, mask=kept)


@triton.jit
def _fetch(p_slab, p_source, p_head, p_misses, PART: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    chain()
    i_b, i_m = tl.program_id(0), tl.program_id(1)
    if i_m < tl.load(p_head + 1):
        e, slot = tl.load(p_misses + i_m * 3), tl.load(p_misses + i_m * 3 + 1).to(tl.int64)
        part = i_b // tl.cdiv(PART, BLOCK)
        o_w = i_b % tl.cdiv(PART, BLOCK) * BLOCK + tl.arange(0, BLOCK)
        address = tl.multiple_of(tl.load(p_source + e * 3 + part), 16)
        b = tl.load(address.to(tl.pointer_type(tl.int32)) + o_w, mask=o_w < PART)
        tl.store(p_slab + slot * SIZE + part * PART + o_w, b, mask=o_w < PART)


def fetch(slab: Slab, source: Tensor, routes: Routes, *, rows: int) -> None:
    """Copy the missed experts of this layer from host memory into their slots, each byte read once and contiguously.

    source [E, 3] int64: device-visible addresses of gate, up and down of each expert, 16-byte aligned.
    """
    words = slab.slots.view(torch.int32)
    part = words.shape[-1] // 3
    block = 32768 if INTERPRETED else 4096
    most = rows * routes.ids.shape[1]
    _fetch[(3 * triton.cdiv(part, block), most)](
        words, source, routes.head, routes.misses, PART=part, SIZE=3 * part, BLOCK=block, launch_pdl=PDL, num_warps=8
    )


def few_rows(
    x: Tensor,
    y: Tensor,
    slab: Slab,
    shared_down: Tensor,
    routes: Routes,
    residency: Residency | None,
    streams: Tensor,
    amount: Tensor,
    work: tuple[Tensor, Tensor],
) -> None:
    """Add the experts' output to the streams: rows routed by `router.route`, missed experts fetched already.

    x [R, H] fp32, R <= 4; y [R, E + 2 I_s + 1] fp32: router logits, shared gate and up, shared opening; shared_down
    [H, I_s]; streams [R, n, H] in place, amount [R, n] from hyper_connection.mix_up;
    work = (hidden [4 top, 4, I], partial sums [4 top + 1, 4, H]) fp32.
    """
    rows, width = x.shape
    experts, top = routes.rank.shape[0], routes.ids.shape[1]
    hidden, part = work
    most = rows * top
    inner, shared = slab.width, shared_down.shape[1]
    fp8 = slab.scales is not None
    scales = x if slab.scales is None else slab.scales
    bn = min(BLOCK, tile(inner, GATE_UP, 128))
    _gate_up[(triton.cdiv(inner, bn), most)](
        x, slab.slots, scales, hidden, routes.head, routes.experts, routes.slots, routes.rows, x.stride(0),
        H=width, I=inner, R=rows, FP8=fp8, BN=bn, C=chunk(width, 1, fp8), launch_pdl=PDL, num_warps=1,
    )  # fmt: skip
    bn = min(BLOCK, tile(width, DOWN, 128))
    _down[(triton.cdiv(width, bn), most + 1)](
        hidden, slab.slots, scales, part, routes.head, routes.experts, routes.slots, routes.rows, y, shared_down,
        y.stride(0), H=width, I=inner, IS=shared, E=experts, R=rows, MOST=most, FP8=fp8, BN=bn,
        C=chunk(inner, 1, fp8), CS=chunk(shared, 1), launch_pdl=PDL, num_warps=1,
    )  # fmt: skip
    n = streams.shape[1]
    bh = tile(width, 64, 512)
    dummy = routes.head
    _combine[(triton.cdiv(width, bh), rows)](
        part, streams, amount, y, routes.head, routes.ids, routes.weights, routes.rank, routes.misses,
        dummy if residency is None else residency.table, dummy if residency is None else residency.owner, y.stride(0),
        H=width, IS=shared, E=experts, TOP=top, R=rows, MOST=most, STREAMS=n,
        POOLED=residency is not None, BT=triton.next_power_of_2(top), BH=bh, launch_pdl=PDL, num_warps=2,
    )  # fmt: skip
