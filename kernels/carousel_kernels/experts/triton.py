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
from carousel_kernels.row_dot import INTERPRETED, PDL, chain, halves, silu, tile

GATE_UP, DOWN = [8, 4], [32, 4]  # rows of weights and warps of a program
BLOCK = 128  # values a side of an FP8 scale block


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
    stride_x,
    H: tl.constexpr,
    I: tl.constexpr,
    R: tl.constexpr,
    FP8: tl.constexpr,
    BLOCKED: tl.constexpr,
    BN: tl.constexpr,
    K1: tl.constexpr,
    K2: tl.constexpr,
):
    chain()
    i_n, i_u = tl.program_id(0), tl.program_id(1)
    if i_u < tl.load(p_head):
        slot = tl.load(p_slots + i_u).to(tl.int64)
        p_e = p_slab + slot * (3 * I * H)
        o_n = i_n * BN + tl.arange(0, BN)
        m_n = o_n < I
        KB: tl.constexpr = (H + BLOCKED - 1) // BLOCKED
        NB: tl.constexpr = (I + BLOCKED - 1) // BLOCKED
        o_1, o_2 = tl.arange(0, K1), K1 + tl.arange(0, K2)
        m_2 = o_2 < H
        m_w = m_n[:, None] & m_2[None, :]
        p_g = p_e + o_n[:, None] * H
        g_1 = tl.load(p_g + o_1[None, :], mask=m_n[:, None], other=0.0)
        u_1 = tl.load(p_g + I * H + o_1[None, :], mask=m_n[:, None], other=0.0)
        g_2 = tl.load(p_g + o_2[None, :], mask=m_w, other=0.0)
        u_2 = tl.load(p_g + I * H + o_2[None, :], mask=m_w, other=0.0)
        if FP8:
            p_s = p_scales + tl.load(p_experts + i_u) * (3 * NB * KB) + (i_n * BN // BLOCKED) * KB
            gs_1 = tl.load(p_s + o_1 // BLOCKED)
            us_1 = tl.load(p_s + NB * KB + o_1 // BLOCKED)
            gs_2 = tl.load(p_s + o_2 // BLOCKED, mask=m_2, other=0.0)
            us_2 = tl.load(p_s + NB * KB + o_2 // BLOCKED, mask=m_2, other=0.0)
        for r in tl.static_range(R):
            x_1 = tl.load(p_x + r * stride_x + o_1)
            x_2 = tl.load(p_x + r * stride_x + o_2, mask=m_2, other=0.0)
            if FP8:
                b_g = tl.sum(g_1.to(tl.float32) * (x_1 * gs_1)[None, :], 1)
                b_g += tl.sum(g_2.to(tl.float32) * (x_2 * gs_2)[None, :], 1)
                b_u = tl.sum(u_1.to(tl.float32) * (x_1 * us_1)[None, :], 1)
                b_u += tl.sum(u_2.to(tl.float32) * (x_2 * us_2)[None, :], 1)
            else:
                b_g = tl.sum(g_1.to(tl.float32) * x_1[None, :], 1) + tl.sum(g_2.to(tl.float32) * x_2[None, :], 1)
                b_u = tl.sum(u_1.to(tl.float32) * x_1[None, :], 1) + tl.sum(u_2.to(tl.float32) * x_2[None, :], 1)
            tl.store(p_hidden + (i_u * 4 + r) * I + o_n, silu(b_g) * b_u, mask=m_n)


@triton.jit
def _down(
    p_hidden,
    p_slab,
    p_scales,
    p_part,
    p_head,
    p_experts,
    p_slots,
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
    BLOCKED: tl.constexpr,
    BN: tl.constexpr,
    K1: tl.constexpr,
    K2: tl.constexpr,
    S1: tl.constexpr,
    S2: tl.constexpr,
):
    # routing and fetching are complete before the kernel ahead of this one begins: weights may be loaded before `chain`
    i_n, i_u = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BN + tl.arange(0, BN)
    m_n = o_n < H
    p_o = p_part + i_u * 4 * H + o_n
    if i_u == MOST:  # the shared expert, whose gate and up rows came with the router's product
        s_1, s_2 = tl.arange(0, S1), S1 + tl.arange(0, S2)
        n_2 = s_2 < IS
        p_s = p_shared + o_n[:, None] * IS
        w_1 = tl.load(p_s + s_1[None, :], mask=m_n[:, None], other=0.0)
        w_2 = tl.load(p_s + s_2[None, :], mask=m_n[:, None] & n_2[None, :], other=0.0)
        chain()
        for r in tl.static_range(R):
            p_g = p_y + r * stride_y + E
            h_1 = silu(tl.load(p_g + s_1)) * tl.load(p_g + IS + s_1)
            h_2 = silu(tl.load(p_g + s_2, mask=n_2, other=0.0)) * tl.load(p_g + IS + s_2, mask=n_2, other=0.0)
            b_s = tl.sum(w_1.to(tl.float32) * h_1[None, :], 1) + tl.sum(w_2.to(tl.float32) * h_2[None, :], 1)
            tl.store(p_o + r * H, b_s, mask=m_n)
    elif i_u < tl.load(p_head):
        slot = tl.load(p_slots + i_u).to(tl.int64)
        o_1, o_2 = tl.arange(0, K1), K1 + tl.arange(0, K2)
        m_2 = o_2 < I
        p_e = p_slab + slot * (3 * I * H) + 2 * I * H + o_n[:, None] * I
        b_1 = tl.load(p_e + o_1[None, :], mask=m_n[:, None], other=0.0)
        b_2 = tl.load(p_e + o_2[None, :], mask=m_n[:, None] & m_2[None, :], other=0.0)
        KB: tl.constexpr = (I + BLOCKED - 1) // BLOCKED
        NB: tl.constexpr = (H + BLOCKED - 1) // BLOCKED
        if FP8:
            p_f = p_scales + tl.load(p_experts + i_u) * (3 * NB * KB) + 2 * NB * KB + (i_n * BN // BLOCKED) * KB
            f_1 = tl.load(p_f + o_1 // BLOCKED)
            f_2 = tl.load(p_f + o_2 // BLOCKED, mask=m_2, other=0.0)
        chain()
        for r in tl.static_range(R):
            p_h = p_hidden + (i_u * 4 + r) * I
            x_1 = tl.load(p_h + o_1)
            x_2 = tl.load(p_h + o_2, mask=m_2, other=0.0)
            if FP8:
                x_1, x_2 = x_1 * f_1, x_2 * f_2
            b_y = tl.sum(b_1.to(tl.float32) * x_1[None, :], 1) + tl.sum(b_2.to(tl.float32) * x_2[None, :], 1)
            tl.store(p_o + r * H, b_y, mask=m_n)


@triton.jit
def _combine(
    p_part,
    p_streams,
    p_mix,
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
    LOWRANK: tl.constexpr,
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
    b_y = tl.sum(b_p * b_w[:, None], 0)
    opening = tl.sigmoid(tl.load(p_y + i_r * stride_y + E + 2 * IS))
    b_y += opening * tl.load(p_part + (MOST * 4 + i_r) * H + o_h, mask=m_h, other=0.0)
    for c in tl.static_range(STREAMS):
        logit = 0.0
        for s in tl.static_range(STREAMS):
            logit += tl.load(p_mix + (s * R + i_r) * (LOWRANK + STREAMS) + LOWRANK + c)
        p_s = p_streams + (i_r * STREAMS + c) * H + o_h
        b_s = tl.load(p_s, mask=m_h, other=0.0) + 2.0 * tl.sigmoid(logit / STREAMS) * b_y
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
    mix: Tensor,
    work: tuple[Tensor, Tensor],
) -> None:
    """Add the experts' output to the streams: rows routed by `router.route`, missed experts fetched already.

    x [R, H] fp32, R <= 4; y [R, E + 2 I_s + 1] fp32: router logits, shared gate and up, shared opening; shared_down
    [H, I_s]; streams [R, n, H] in place; mix [n, R, lowrank + n] from mix_down, inject logits last;
    work = (hidden [4 top, 4, I], partial sums [4 top + 1, 4, H]) fp32.
    """
    rows, width = x.shape
    experts, top = routes.rank.shape[0], routes.ids.shape[1]
    hidden, part = work
    most = rows * top
    inner, shared = slab.width, shared_down.shape[1]
    fp8 = slab.scales is not None
    bn = min(BLOCK, tile(inner, GATE_UP[0], 128))
    k1, k2 = halves(width)
    scales = x if slab.scales is None else slab.scales
    _gate_up[(triton.cdiv(inner, bn), most)](
        x, slab.slots, scales, hidden, routes.head, routes.experts, routes.slots, x.stride(0),
        H=width, I=inner, R=rows, FP8=fp8, BLOCKED=BLOCK, BN=bn, K1=k1, K2=k2,
        launch_pdl=PDL, num_warps=GATE_UP[1],
    )  # fmt: skip
    bn = min(BLOCK, tile(width, DOWN[0], 128))
    (k1, k2), (s1, s2) = halves(inner), halves(shared)
    _down[(triton.cdiv(width, bn), most + 1)](
        hidden, slab.slots, scales, part, routes.head, routes.experts, routes.slots, y, shared_down, y.stride(0),
        H=width, I=inner, IS=shared, E=experts, R=rows, MOST=most, FP8=fp8, BLOCKED=BLOCK, BN=bn,
        K1=k1, K2=k2, S1=s1, S2=s2, launch_pdl=PDL, num_warps=DOWN[1],
    )  # fmt: skip
    n = streams.shape[1]
    bh = tile(width, 64, 512)
    dummy = routes.head
    _combine[(triton.cdiv(width, bh), rows)](
        part, streams, mix, y, routes.head, routes.ids, routes.weights, routes.rank, routes.misses,
        dummy if residency is None else residency.table, dummy if residency is None else residency.owner, y.stride(0),
        H=width, IS=shared, E=experts, TOP=top, R=rows, MOST=most, LOWRANK=mix.shape[2] - n, STREAMS=n,
        POOLED=residency is not None, BT=triton.next_power_of_2(top), BH=bh, launch_pdl=PDL, num_warps=2,
    )  # fmt: skip
