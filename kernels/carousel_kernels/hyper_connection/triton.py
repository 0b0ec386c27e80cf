"""Hyper-connections on the GPU: into a block (`mix_down`, `mix_up` for few rows; `norm`, `blend`, `inject` for
many)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import (
    INTERPRETED,
    PDL,
    append,
    chain,
    chunk,
    columns,
    dot_fours,
    load_chunk,
    load_rows,
    silu,
    tile,
)

MIX_DOWN, MIX_UP = (4, 4), (8, 4)  # rows of a program and warps


@triton.jit
def _mix_down(
    p_s,
    p_scale,
    p_w,
    p_part,
    p_rstd,
    eps,
    N,
    H: tl.constexpr,
    R: tl.constexpr,
    STREAMS: tl.constexpr,
    BN: tl.constexpr,
    C: tl.constexpr,
):
    i_n, i_c = tl.program_id(0), tl.program_id(1)
    o_n = i_n * BN + tl.arange(0, BN)
    m_n = o_n < N
    o_c = columns(C)
    w = load_rows(p_w + tl.minimum(o_n, N - 1)[:, None] * (STREAMS * H) + i_c * H + o_c[None, :], o_c, H, C)
    chain()
    acc, squares = (), ()
    for _ in tl.static_range(R):
        acc = append(acc, tl.zeros([BN, C // 4], tl.float32))
        squares = append(squares, tl.zeros([C], tl.float32))
    for c in tl.static_range((H + C - 1) // C):
        b_w = w[c].to(tl.float32)
        b_scale = load_chunk(p_scale + i_c * H, o_c, c, H, C)
        more, larger = (), ()
        for r in tl.static_range(R):
            b_x = load_chunk(p_s + (r * STREAMS + i_c) * H, o_c, c, H, C)
            more = append(more, acc[r] + dot_fours(b_w, b_x * b_scale))
            larger = append(larger, tl.fma(b_x, b_x, squares[r]))
        acc, squares = more, larger
    for r in tl.static_range(R):
        rstd = 1.0 / tl.sqrt(tl.sum(squares[r]) / H + eps)
        tl.store(p_part + (i_c * R + r) * N + o_n, tl.sum(acc[r], 1) * rstd, mask=m_n)
        if i_n == 0:
            tl.store(p_rstd + r * STREAMS + i_c, rstd)


def mix_down(streams: Tensor, scale: Tensor, weight: Tensor, part: Tensor, rstd: Tensor, eps: float) -> None:
    """Norm the streams and take the narrow product: `part[c, r] = W[:, stream c] (rms_norm(S_rc) * scale_c)`.

    streams [R, n, H] fp32, R <= 4; scale [n * H] fp32; weight [lowrank (+ n inject rows), n * H];
    part [n, R, rows of weight] fp32, to be summed over n by its readers; rstd [R, n].
    """
    rows, n, width = streams.shape
    if not streams.is_contiguous() or not weight.is_contiguous() or not 1 <= rows <= 4:
        raise ValueError(f"streams {tuple(streams.shape)} must be contiguous with 1 to 4 rows")
    out = weight.shape[0]
    bn, warps = tile(out, MIX_DOWN[0], 256), MIX_DOWN[1]
    _mix_down[(triton.cdiv(out, bn), n)](
        streams, scale, weight, part, rstd, eps, out,
        H=width, R=rows, STREAMS=n, BN=bn, C=chunk(width, warps), launch_pdl=PDL, num_warps=warps,
    )  # fmt: skip


@triton.jit
def _mix_up(
    p_s,
    p_scale,
    p_w,
    p_part,
    p_rstd,
    p_x,
    p_amount,
    N,
    H: tl.constexpr,
    LOWRANK: tl.constexpr,
    R: tl.constexpr,
    STREAMS: tl.constexpr,
    INJECT: tl.constexpr,
    BH: tl.constexpr,
    BA: tl.constexpr,
    C: tl.constexpr,
):
    # rows j of the tile: stream j // BH, place j % BH of the program's span, so that the narrow vector is made once
    o_j = tl.arange(0, STREAMS * BH)
    o_h = tl.program_id(0) * BH + o_j % BH
    o_s = o_j // BH * H + o_h
    m_j = o_h < H
    o_c = columns(C)
    w = load_rows(p_w + tl.minimum(o_s, STREAMS * H - 1)[:, None] * LOWRANK + o_c[None, :], o_c, LOWRANK, C)
    b_scale = tl.load(p_scale + o_s, mask=m_j, other=0.0)
    normed = ()
    for r in tl.static_range(R):  # the streams: whoever wrote them, mix_down has waited for it
        b_n = tl.load(p_s + r * STREAMS * H + o_s, mask=m_j, other=0.0) * b_scale
        normed = append(normed, b_n)
    chain()
    narrow = ()
    for r in tl.static_range(R):
        for c in tl.static_range((LOWRANK + C - 1) // C):
            b_d = load_chunk(p_part + r * N, o_c, c, LOWRANK, C)
            for s in tl.static_range(1, STREAMS):
                b_d += load_chunk(p_part + (s * R + r) * N, o_c, c, LOWRANK, C)
            narrow = append(narrow, silu(b_d / STREAMS))
    if INJECT:
        if tl.program_id(0) == 0:
            o_a = tl.arange(0, BA)
            m_a = o_a < R * STREAMS
            logit = tl.zeros([BA], tl.float32)
            for s in tl.static_range(STREAMS):
                p_l = p_part + (s * R + o_a // STREAMS) * N + LOWRANK + o_a % STREAMS
                logit += tl.load(p_l, mask=m_a, other=0.0)
            tl.store(p_amount + o_a, 2.0 * tl.sigmoid(logit / STREAMS), mask=m_a)
    o_x = tl.program_id(0) * BH + tl.arange(0, BH)
    for r in tl.static_range(R):
        b_g = tl.zeros([STREAMS * BH, C // 4], tl.float32)
        for c in tl.static_range((LOWRANK + C - 1) // C):
            b_g += dot_fours(w[c], narrow[r * ((LOWRANK + C - 1) // C) + c])
        b_n = normed[r] * tl.load(p_rstd + r * STREAMS + o_j // BH)
        b_x = tl.fma(tl.sigmoid(tl.sum(b_g, 1)), b_n, 0.0)
        tl.store(p_x + r * H + o_x, tl.sum(tl.reshape(b_x, [STREAMS, BH]), 0) / STREAMS, mask=o_x < H)


def mix_up(
    streams: Tensor, scale: Tensor, weight: Tensor, part: Tensor, rstd: Tensor, x: Tensor, amount: Tensor | None
) -> None:
    """The block's input `x = mean over streams of sigmoid(W_up silu(down / n)) * normed streams`, and what of its
    output goes back: `amount = 2 sigmoid(inject logits / n)`.

    part and rstd from `mix_down`; weight [n * H, lowrank]; x [R, H] and amount [R, n] fp32 are written; amount is None
    where part has no inject logits.
    """
    rows, n, width = streams.shape
    lowrank = weight.shape[1]
    if (amount is None) != (part.shape[2] == lowrank):
        raise ValueError(f"part {tuple(part.shape)} of rank {lowrank} {'has' if amount is None else 'lacks'} amounts")
    bh, warps = tile(width, MIX_UP[0], 256), MIX_UP[1]
    _mix_up[(triton.cdiv(width, bh),)](
        streams, scale, weight, part, rstd, x, x if amount is None else amount, part.shape[2],
        H=width, LOWRANK=lowrank, R=rows, STREAMS=n, INJECT=amount is not None, BH=bh,
        BA=triton.next_power_of_2(rows * n), C=chunk(lowrank, 1), launch_pdl=PDL, num_warps=warps,
    )  # fmt: skip


@triton.jit
def _norm(p_s, p_scale, p_n, eps, H: tl.constexpr, STREAMS: tl.constexpr, BH: tl.constexpr):
    chain()
    i_t, i_c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_h = tl.arange(0, BH)
    m_h = o_h < H
    o_s = (i_t * STREAMS + i_c) * H + o_h
    b_s = tl.load(p_s + o_s, mask=m_h, other=0.0)
    b_n = b_s / tl.sqrt(tl.sum(b_s * b_s) / H + eps) * tl.load(p_scale + i_c * H + o_h, mask=m_h, other=0.0)
    tl.store(p_n + o_s, b_n.to(p_n.dtype.element_ty), mask=m_h)


def norm(streams: Tensor, scale: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`rms_norm` of each stream times scale [n, H]: streams [T, n, H] fp32 to [T, n * H] of dtype."""
    rows, n, width = streams.shape
    out = torch.empty(rows, n * width, dtype=dtype, device=streams.device)
    _norm[(rows, n)](
        streams, scale, out, eps, H=width, STREAMS=n, BH=triton.next_power_of_2(width), launch_pdl=PDL, num_warps=4
    )
    return out


@triton.jit
def _blend(p_g, p_n, p_x, H: tl.constexpr, STREAMS: tl.constexpr, BH: tl.constexpr):
    chain()
    i_t = tl.program_id(0).to(tl.int64)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    m_h = o_h < H
    b_x = tl.zeros([BH], tl.float32)
    for c in tl.static_range(STREAMS):
        o_s = (i_t * STREAMS + c) * H + o_h
        b_g = tl.load(p_g + o_s, mask=m_h, other=0.0).to(tl.float32)
        b_x += tl.sigmoid(b_g) * tl.load(p_n + o_s, mask=m_h, other=0.0).to(tl.float32)
    tl.store(p_x + i_t * H + o_h, (b_x / STREAMS).to(p_x.dtype.element_ty), mask=m_h)


def blend(gates: Tensor, normed: Tensor, n: int) -> Tensor:
    """`mean over streams of sigmoid(gates) * normed`: both [T, n * H]; returns [T, H] of normed's dtype."""
    rows, width = normed.shape[0], normed.shape[1] // n
    out = torch.empty(rows, width, dtype=normed.dtype, device=normed.device)
    bh = triton.next_power_of_2(width) if INTERPRETED else 1024
    _blend[(rows, triton.cdiv(width, bh))](gates, normed, out, H=width, STREAMS=n, BH=bh, launch_pdl=PDL, num_warps=4)
    return out


@triton.jit
def _inject(p_s, p_y, p_logit, stride_logit, H: tl.constexpr, STREAMS: tl.constexpr, BH: tl.constexpr):
    chain()
    i_t = tl.program_id(0).to(tl.int64)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    m_h = o_h < H
    b_y = tl.load(p_y + i_t * H + o_h, mask=m_h, other=0.0).to(tl.float32)
    for c in tl.static_range(STREAMS):
        amount = 2.0 * tl.sigmoid(tl.load(p_logit + i_t * stride_logit + c) / STREAMS)
        p_b = p_s + (i_t * STREAMS + c) * H + o_h
        tl.store(p_b, tl.load(p_b, mask=m_h, other=0.0) + amount * b_y, mask=m_h)


def inject(streams: Tensor, y: Tensor, logits: Tensor) -> None:
    """`streams[t, c] += 2 sigmoid(logits[t, c] / n) * y[t]` in place: streams [T, n, H], y [T, H], logits [T, n]."""
    rows, n, width = streams.shape
    bh = triton.next_power_of_2(width) if INTERPRETED else 1024
    _inject[(rows, triton.cdiv(width, bh))](
        streams, y, logits, logits.stride(0), H=width, STREAMS=n, BH=bh, launch_pdl=PDL, num_warps=4
    )
