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
from carousel_kernels.row_dot import INTERPRETED, PDL, add_rows, add_scaled_rows, chain, silu, tile

GATE_UP, DOWN = [8, 512, 4], [32, 4]  # rows of weights, columns and warps of a program; rows and warps
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
    BK: tl.constexpr,
):
    chain()
    i_n, i_u = tl.program_id(0), tl.program_id(1)
    if i_u < tl.load(p_head):
        slot = tl.load(p_slots + i_u).to(tl.int64)
        p_e = p_slab + slot * (3 * I * H)
        o_n = i_n * BN + tl.arange(0, BN)
        m_n = o_n < I
        g0 = tl.zeros([BN, BK], tl.float32)
        g1, g2, g3, u0, u1, u2, u3 = g0, g0, g0, g0, g0, g0, g0
        KB: tl.constexpr = (H + BLOCKED - 1) // BLOCKED
        NB: tl.constexpr = (I + BLOCKED - 1) // BLOCKED
        if FP8:
            expert = tl.load(p_experts + i_u)
            p_s = p_scales + expert * (3 * NB * KB) + (i_n * BN // BLOCKED) * KB
        for k in tl.range(0, H, BK):
            o_k = k + tl.arange(0, BK)
            m_k = o_k < H
            m_w = m_n[:, None] & m_k[None, :]
            b_g = tl.load(p_e + o_n[:, None] * H + o_k[None, :], mask=m_w, other=0.0).to(tl.float32)
            b_u = tl.load(p_e + I * H + o_n[:, None] * H + o_k[None, :], mask=m_w, other=0.0).to(tl.float32)
            if FP8:
                b_gs = tl.load(p_s + o_k // BLOCKED, mask=m_k, other=0.0)
                b_us = tl.load(p_s + NB * KB + o_k // BLOCKED, mask=m_k, other=0.0)
                g0, g1, g2, g3 = add_scaled_rows(b_g, p_x + o_k, stride_x, b_gs, m_k, g0, g1, g2, g3, R)
                u0, u1, u2, u3 = add_scaled_rows(b_u, p_x + o_k, stride_x, b_us, m_k, u0, u1, u2, u3, R)
            else:
                g0, g1, g2, g3 = add_rows(b_g, p_x + o_k, stride_x, m_k, g0, g1, g2, g3, R)
                u0, u1, u2, u3 = add_rows(b_u, p_x + o_k, stride_x, m_k, u0, u1, u2, u3, R)
        p_h = p_hidden + i_u * 4 * I + o_n
        tl.store(p_h, silu(tl.sum(g0, 1)) * tl.sum(u0, 1), mask=m_n)
        if R > 1:
            tl.store(p_h + I, silu(tl.sum(g1, 1)) * tl.sum(u1, 1), mask=m_n)
        if R > 2:
            tl.store(p_h + 2 * I, silu(tl.sum(g2, 1)) * tl.sum(u2, 1), mask=m_n)
        if R > 3:
            tl.store(p_h + 3 * I, silu(tl.sum(g3, 1)) * tl.sum(u3, 1), mask=m_n)


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
    BK: tl.constexpr,
):
    chain()
    i_n, i_u = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BN + tl.arange(0, BN)
    m_n = o_n < H
    a0 = tl.zeros([BN, BK], tl.float32)
    a1, a2, a3 = a0, a0, a0
    live = True
    if i_u == MOST:  # the shared expert, whose gate and up rows came with the router's product
        for k in tl.static_range(0, IS, BK):
            o_k = k + tl.arange(0, BK)
            m_k = o_k < IS
            b_w = tl.load(p_shared + o_n[:, None] * IS + o_k[None, :], mask=m_n[:, None] & m_k[None, :], other=0.0)
            b_w = b_w.to(tl.float32)
            for r in tl.static_range(R):
                p_g = p_y + r * stride_y + E + o_k
                b_h = silu(tl.load(p_g, mask=m_k, other=0.0)) * tl.load(p_g + IS, mask=m_k, other=0.0)
                if r == 0:
                    a0 += b_w * b_h[None, :]
                elif r == 1:
                    a1 += b_w * b_h[None, :]
                elif r == 2:
                    a2 += b_w * b_h[None, :]
                else:
                    a3 += b_w * b_h[None, :]
    elif i_u < tl.load(p_head):
        slot = tl.load(p_slots + i_u).to(tl.int64)
        p_e = p_slab + slot * (3 * I * H) + 2 * I * H
        KB: tl.constexpr = (I + BLOCKED - 1) // BLOCKED
        NB: tl.constexpr = (H + BLOCKED - 1) // BLOCKED
        if FP8:
            expert = tl.load(p_experts + i_u)
            p_s = p_scales + expert * (3 * NB * KB) + 2 * NB * KB + (i_n * BN // BLOCKED) * KB
        for k in tl.static_range(0, I, BK):
            o_k = k + tl.arange(0, BK)
            m_k = o_k < I
            b_w = tl.load(p_e + o_n[:, None] * I + o_k[None, :], mask=m_n[:, None] & m_k[None, :], other=0.0)
            b_w = b_w.to(tl.float32)
            p_h = p_hidden + i_u * 4 * I + o_k
            if FP8:
                b_s = tl.load(p_s + o_k // BLOCKED, mask=m_k, other=0.0)
                a0, a1, a2, a3 = add_scaled_rows(b_w, p_h, I, b_s, m_k, a0, a1, a2, a3, R)
            else:
                a0, a1, a2, a3 = add_rows(b_w, p_h, I, m_k, a0, a1, a2, a3, R)
    else:
        live = False
    if live:
        p_o = p_part + i_u * 4 * H + o_n
        tl.store(p_o, tl.sum(a0, 1), mask=m_n)
        if R > 1:
            tl.store(p_o + H, tl.sum(a1, 1), mask=m_n)
        if R > 2:
            tl.store(p_o + 2 * H, tl.sum(a2, 1), mask=m_n)
        if R > 3:
            tl.store(p_o + 3 * H, tl.sum(a3, 1), mask=m_n)


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
    chain()
    i_h, i_r = tl.program_id(0), tl.program_id(1)
    o_i, o_h = tl.arange(0, BT), i_h * BH + tl.arange(0, BH)
    m_i, m_h = o_i < TOP, o_h < H
    b_e = tl.load(p_ids + i_r * TOP + o_i, mask=m_i, other=0)
    b_w = tl.load(p_weights + i_r * TOP + o_i, mask=m_i, other=0.0)
    b_u = tl.load(p_rank + b_e, mask=m_i, other=0)
    p_p = p_part + (b_u * 4 + i_r)[:, None] * H + o_h[None, :]
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
    scales = x if slab.scales is None else slab.scales
    _gate_up[(triton.cdiv(inner, bn), most)](
        x, slab.slots, scales, hidden, routes.head, routes.experts, routes.slots, x.stride(0),
        H=width, I=inner, R=rows, FP8=fp8, BLOCKED=BLOCK, BN=bn, BK=min(GATE_UP[1], triton.next_power_of_2(width)),
        launch_pdl=PDL, num_warps=GATE_UP[2],
    )  # fmt: skip
    bn = min(BLOCK, tile(width, DOWN[0], 128))
    _down[(triton.cdiv(width, bn), most + 1)](
        hidden, slab.slots, scales, part, routes.head, routes.experts, routes.slots, y, shared_down, y.stride(0),
        H=width, I=inner, IS=shared, E=experts, R=rows, MOST=most, FP8=fp8, BLOCKED=BLOCK, BN=bn,
        BK=min(128, triton.next_power_of_2(inner)), launch_pdl=PDL, num_warps=DOWN[1],
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
