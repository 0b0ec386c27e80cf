"""Linear layers on the GPU: one to four rows (decode, verification), and many rows (prefill)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import (
    INTERPRETED,
    LANES,
    PDL,
    append,
    chain,
    chunk,
    columns,
    dot_fours,
    load_chunk,
    load_rows,
    tile,
)

MAX_ROWS = 4


@triton.jit
def _few_rows(
    p_x,
    p_w,
    p_scale,
    p_out,
    stride_x,
    stride_out,
    N,
    p_streams,
    p_amount,
    K: tl.constexpr,
    R: tl.constexpr,
    SCALED: tl.constexpr,
    INJECT: tl.constexpr,
    STREAMS: tl.constexpr,
    BN: tl.constexpr,
    C: tl.constexpr,
):
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    m_n = o_n < N
    o_c = columns(C)
    w = load_rows(p_w + tl.minimum(o_n, N - 1)[:, None].to(tl.int64) * K + o_c[None, :], o_c, K, C)
    p_s = p_scale + tl.program_id(0) * BN // C * ((K + C - 1) // C)
    amounts, before = (), ()
    if INJECT:  # who wrote them was complete before the kernel ahead of this one began
        for i in tl.static_range(R * STREAMS):
            amounts = append(amounts, tl.load(p_amount + i))
            before = append(before, tl.load(p_streams + i * N + o_n, mask=m_n, other=0.0))
    chain()
    acc = ()
    for _ in tl.static_range(R):
        acc = append(acc, tl.zeros([BN, C // 4], tl.float32))
    for c in tl.static_range((K + C - 1) // C):
        b_w = w[c].to(tl.float32)
        scale = 1.0
        if SCALED:
            scale = tl.load(p_s + c)
        more = ()
        for r in tl.static_range(R):
            more = append(more, tl.fma(dot_fours(b_w, load_chunk(p_x + r * stride_x, o_c, c, K, C)), scale, acc[r]))
        acc = more
    for r in tl.static_range(R):
        b_y = tl.sum(acc[r], 1)
        if INJECT:
            for c in tl.static_range(STREAMS):
                p_o = p_streams + (r * STREAMS + c) * N + o_n
                tl.store(p_o, tl.fma(b_y, amounts[r * STREAMS + c], before[r * STREAMS + c]), mask=m_n)
        else:
            tl.store(p_out + r * stride_out + o_n, b_y, mask=m_n)


def few_rows(
    x: Tensor, weight: Tensor, out: Tensor, *, scale: Tensor | None = None, block: tuple[int, int] | None = None
) -> Tensor:
    """`out = x @ weight.T` for x [R, K] fp32 (rows of any stride), R <= 4; weight [N, K] contiguous, any float type.

    Bitwise the same for a row whatever R is. out [R, N] fp32. scale [ceil(N / 128), ceil(K / 128)] fp32 multiplies
    blocks of an FP8 weight. block: rows of weights and warps of a program.
    """
    rows, width = x.shape
    _check(x, weight, rows)
    bn, warps = block or _block(weight.shape[0], width, scale is not None)
    _few_rows[(triton.cdiv(weight.shape[0], bn),)](
        x, weight, x if scale is None else scale, out, x.stride(0), out.stride(0), weight.shape[0], x, x,
        K=width, R=rows, SCALED=scale is not None, INJECT=False, STREAMS=1, BN=bn,
        C=chunk(width, warps, scale is not None), launch_pdl=PDL, num_warps=warps,
    )  # fmt: skip
    return out


def few_rows_inject(
    x: Tensor,
    weight: Tensor,
    streams: Tensor,
    amount: Tensor,
    *,
    scale: Tensor | None = None,
    block: tuple[int, int] | None = None,
) -> None:
    """`streams[r, c] += amount[r, c] * (x @ weight.T)[r]`: a block's last product and its return.

    streams [R, n, N] fp32 in place; amount [R, n] from hyper_connection.mix_up, two kernels ago or earlier; scale and
    block as for `few_rows`.
    """
    rows, width = x.shape
    _check(x, weight, rows)
    n = streams.shape[1]
    bn, warps = block or _block(weight.shape[0], width, scale is not None)
    _few_rows[(triton.cdiv(weight.shape[0], bn),)](
        x, weight, x if scale is None else scale, x, x.stride(0), 0, weight.shape[0], streams, amount,
        K=width, R=rows, SCALED=scale is not None, INJECT=True, STREAMS=n, BN=bn,
        C=chunk(width, warps, scale is not None), launch_pdl=PDL, num_warps=warps,
    )  # fmt: skip


def _check(x: Tensor, weight: Tensor, rows: int) -> None:
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"few_rows takes 1 to {MAX_ROWS} rows, not {rows}: use many_rows")
    if x.dtype != torch.float32 or x.stride(1) != 1 or not weight.is_contiguous() or weight.shape[1] != x.shape[1]:
        raise ValueError(
            f"x {tuple(x.shape)} {x.dtype} must be fp32 rows for weight {tuple(weight.shape)}, which is contiguous"
        )


# rows of weights and warps of a program: for rows of up to LONG columns, MANY of them or fewer, and for longer ones
SHORT, SHORT_MANY, LONGER = (2, 2), (2, 1), (2, 4)
SCALED = [4, 2]  # the same of FP8 with scales, where a program is one warp: rows of weights for short and for long ones
LONG, MANY = 4096, 65536


def _block(out: int, width: int, scaled: bool) -> tuple[int, int]:
    if INTERPRETED:
        return min(tile(out, 8, 256), LANES), 4
    if scaled:
        return SCALED[width > LONG], 1
    return LONGER if width > LONG else SHORT if out < MANY else SHORT_MANY


@triton.jit
def _many_rows(
    p_x,
    p_w,
    p_scale,
    p_out,
    M,
    N,
    K,
    stride_x,
    stride_out,
    EXACT: tl.constexpr,
    SIDE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    chain()
    i_p = tl.program_id(0)
    n_m, n_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * n_n
    first = i_p // width * GROUP
    size = min(n_m - first, GROUP)
    i_m = first + i_p % width % size
    i_n = i_p % width // size
    o_m, o_n = i_m * BM + tl.arange(0, BM), i_n * BN + tl.arange(0, BN)
    o_k = tl.arange(0, BK)
    p_a = p_x + o_m[:, None].to(tl.int64) * stride_x + o_k[None, :]
    p_b = p_w + o_n[None, :].to(tl.int64) * K + o_k[:, None]
    if SIDE:  # the tile lies in one row of blocks of that side, its steps in one block each
        p_s = p_scale + i_n * BN // SIDE * tl.cdiv(K, SIDE)
    acc = tl.zeros([BM, BN], tl.float32)
    for k in tl.range(0, K, BK):
        m_k = o_k < K - k
        b_a = tl.load(p_a, mask=(o_m < M)[:, None] & m_k[None, :], other=0.0)
        b_b = tl.load(p_b, mask=(o_n < N)[None, :] & m_k[:, None], other=0.0)
        if SIDE:
            b_p = tl.dot(b_a, b_b.to(b_a.dtype), input_precision="ieee")
            acc += b_p * tl.load(p_s + k // SIDE)
        elif EXACT:
            acc = tl.dot(b_a.to(tl.float32), b_b.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(b_a, b_b.to(b_a.dtype), acc)
        p_a += BK
        p_b += BK
    p_o = p_out + o_m[:, None].to(tl.int64) * stride_out + o_n[None, :]
    tl.store(p_o, acc.to(p_out.dtype.element_ty), mask=(o_m < M)[:, None] & (o_n < N)[None, :])


def many_rows(
    x: Tensor,
    weight: Tensor,
    out: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    scale: Tensor | None = None,
) -> Tensor:
    """`x @ weight.T` for x [T, K] fp32 (IEEE products) or bf16 (tensor cores); weight [N, K]; sums fp32.

    The order of the sums is fixed by K alone: a row's result does not depend on T or on its place. Returns [T, N].
    scale [ceil(N / 128), ceil(K / 128)] fp32 multiplies blocks of an FP8 weight: the sums over a block's columns.
    """
    rows, width = x.shape
    if x.stride(1) != 1 or not weight.is_contiguous() or weight.shape[1] != width:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)} must agree in width and be row-major")
    if out is None:
        out = torch.empty(rows, weight.shape[0], dtype=dtype, device=x.device)
    exact = x.dtype == torch.float32
    bm, bn, bk, warps, stages = (64, 64, 32, 4, 2) if exact else (128, 128, 64, 8, 3)
    if INTERPRETED:
        most = 512 if scale is None else LANES
        bm, bn, bk = min(256, max(16, triton.next_power_of_2(rows))), tile(weight.shape[0], 64, most), LANES
    grid = (triton.cdiv(rows, bm) * triton.cdiv(weight.shape[0], bn),)
    _many_rows[grid](
        x, weight, x if scale is None else scale, out, rows, weight.shape[0], width, x.stride(0), out.stride(0),
        EXACT=exact, SIDE=0 if scale is None else LANES, BM=bm, BN=bn, BK=bk, GROUP=8, launch_pdl=PDL, num_warps=warps,
        num_stages=stages,
    )  # fmt: skip
    return out
