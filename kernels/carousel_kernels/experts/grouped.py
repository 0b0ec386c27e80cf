"""Routed experts of many rows on the GPU: rows sorted by expert, one tile of rows and one expert a program."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.experts.triton import BLOCK, Slab
from carousel_kernels.row_dot import INTERPRETED, silu


@triton.jit
def _grouped(
    p_x,
    p_slab,
    p_scales,
    p_out,
    p_order,
    p_tile_expert,
    p_tile_row,
    p_tile_end,
    p_slots,
    N,
    K: tl.constexpr,
    STRIDE: tl.constexpr,
    OFFSET: tl.constexpr,
    UP: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    TOP: tl.constexpr,
    GATED: tl.constexpr,
    FP8: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCKED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    i_n, i_t = tl.program_id(0), tl.program_id(1)
    expert = tl.load(p_tile_expert + i_t)
    if expert >= 0:
        o_m = tl.load(p_tile_row + i_t) + tl.arange(0, BM)
        m_m = o_m < tl.load(p_tile_end + i_t)
        place = tl.load(p_order + o_m, mask=m_m, other=0).to(tl.int64)  # the (row, choice) pair
        source = place // TOP if GATED else o_m.to(tl.int64)
        o_n, o_k = i_n * BN + tl.arange(0, BN), tl.arange(0, BK)
        m_n = o_n < N
        p_w = p_slab + tl.load(p_slots + expert).to(tl.int64) * STRIDE + OFFSET + o_n[None, :] * K + o_k[:, None]
        p_a = p_x + source[:, None] * K + o_k[None, :]
        KB: tl.constexpr = (K + BLOCKED - 1) // BLOCKED
        p_s = p_scales + expert * SCALE_STRIDE + SCALE_OFFSET + (i_n * BN // BLOCKED) * KB
        b_0 = tl.zeros([BM, BN], tl.float32)
        b_1 = tl.zeros([BM, BN], tl.float32)
        for k in tl.range(0, K, BK):
            m_k = o_k < K - k
            b_a = tl.load(p_a + k, mask=m_m[:, None] & m_k[None, :], other=0.0)
            b_w = tl.load(p_w + k, mask=m_k[:, None] & m_n[None, :], other=0.0)
            scale, up_scale = 1.0, 1.0
            if FP8:
                scale = tl.load(p_s + k // BLOCKED)
            if EXACT:
                b_0 += tl.dot(b_a.to(tl.float32), b_w.to(tl.float32), input_precision="ieee") * scale
            else:
                b_0 += tl.dot(b_a, b_w.to(b_a.dtype)) * scale
            if GATED:
                b_u = tl.load(p_w + UP + k, mask=m_k[:, None] & m_n[None, :], other=0.0)
                if FP8:
                    up_scale = tl.load(p_s + SCALE_STRIDE // 3 + k // BLOCKED)
                if EXACT:
                    b_1 += tl.dot(b_a.to(tl.float32), b_u.to(tl.float32), input_precision="ieee") * up_scale
                else:
                    b_1 += tl.dot(b_a, b_u.to(b_a.dtype)) * up_scale
        if GATED:
            b_0 = silu(b_0) * b_1
            p_o = p_out + o_m[:, None].to(tl.int64) * N + o_n[None, :]
        else:
            p_o = p_out + place[:, None] * N + o_n[None, :]
        tl.store(p_o, b_0.to(p_out.dtype.element_ty), mask=m_m[:, None] & m_n[None, :])


@triton.jit
def _sum(
    p_part, p_weights, p_shared, p_opening, p_out, stride_opening,
    H: tl.constexpr, TOP: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    i_t, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_i, o_h = tl.arange(0, BT), i_h * BH + tl.arange(0, BH)
    m_i, m_h = o_i < TOP, o_h < H
    b_w = tl.load(p_weights + i_t * TOP + o_i, mask=m_i, other=0.0)
    p_p = p_part + (i_t * TOP + o_i)[:, None] * H + o_h[None, :]
    b_p = tl.load(p_p, mask=m_i[:, None] & m_h[None, :], other=0.0).to(tl.float32)
    b_y = tl.sum(b_p * b_w[:, None], 0)
    opening = tl.sigmoid(tl.load(p_opening + i_t * stride_opening).to(tl.float32))
    b_y += opening * tl.load(p_shared + i_t * H + o_h, mask=m_h, other=0.0).to(tl.float32)
    tl.store(p_out + i_t * H + o_h, b_y, mask=m_h)


def many_rows(
    x: Tensor, ids: Tensor, weights: Tensor, slab: Slab, slots: Tensor, shared: Tensor, opening: Tensor
) -> Tensor:
    """`sum of weight * expert(x) + sigmoid(opening) * shared` for many rows, every expert read once a tile of rows.

    x [T, H] fp32 (IEEE products) or bf16; ids [T, top] int64, weights [T, top] fp32 from the router; slots [E] int32,
    where each expert is in the slab; shared [T, H], the shared expert's output; opening [T, 1]. Returns [T, H] fp32.
    """
    rows, width = x.shape
    top, inner, experts = ids.shape[1], slab.width, slots.shape[0]
    pairs = rows * top
    exact = x.dtype == torch.float32
    bm = 128 if INTERPRETED else (32 if exact else 64)
    order = torch.argsort(ids.flatten(), stable=True).to(torch.int32)
    counts = torch.bincount(ids.flatten(), minlength=experts)
    tiles = (counts + bm - 1) // bm
    most = pairs // bm + min(experts, pairs)
    first_tile, first_row = tiles.cumsum(0) - tiles, counts.cumsum(0) - counts
    at = torch.arange(most, device=x.device)
    owner = torch.searchsorted(tiles.cumsum(0), at, right=True)
    live = owner < experts
    owner = owner.clamp_max(experts - 1)
    tile_expert = torch.where(live, owner, -1).to(torch.int32)
    tile_row = (first_row[owner] + (at - first_tile[owner]) * bm).to(torch.int32)
    tile_end = (first_row + counts)[owner].to(torch.int32)
    hidden = torch.empty(pairs, inner, dtype=x.dtype, device=x.device)
    part = torch.empty(pairs, width, dtype=x.dtype, device=x.device)
    fp8 = slab.scales is not None
    scales = x if slab.scales is None else slab.scales
    blocks = -(-inner // BLOCK) * -(-width // BLOCK)
    bn, bk = (128, 128) if INTERPRETED else ((64, 32) if exact else (128, 64))
    common = {
        "STRIDE": 3 * inner * width, "UP": inner * width, "SCALE_STRIDE": 3 * blocks, "TOP": top, "FP8": fp8,
        "EXACT": exact, "BLOCKED": BLOCK, "BM": bm, "BN": bn, "BK": bk, "num_warps": 4 if exact else 8,
        "num_stages": 2 if exact else 3,
    }  # fmt: skip
    plan = (order, tile_expert, tile_row, tile_end, slots)
    _grouped[(triton.cdiv(inner, bn), most)](
        x, slab.slots, scales, hidden, *plan, inner, K=width, OFFSET=0, SCALE_OFFSET=0, GATED=True, **common
    )
    down = {"OFFSET": 2 * inner * width, "SCALE_OFFSET": 2 * blocks}
    _grouped[(triton.cdiv(width, bn), most)](
        hidden, slab.slots, scales, part, *plan, width, K=inner, GATED=False, **down, **common
    )
    out = torch.empty(rows, width, dtype=torch.float32, device=x.device)
    bh = triton.next_power_of_2(width) if INTERPRETED else 512
    _sum[(rows, triton.cdiv(width, bh))](
        part, weights, shared, opening, out, opening.stride(0),
        H=width, TOP=top, BT=triton.next_power_of_2(top), BH=bh, num_warps=4,
    )  # fmt: skip
    return out
