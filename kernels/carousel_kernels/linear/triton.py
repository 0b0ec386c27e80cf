"""Linear layers on the GPU: one to four rows (decode, verification), and many rows (prefill)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import INTERPRETED, PDL, chain, dot_row, halves, join_rows, split_rows, tile

MAX_ROWS = 4


@triton.jit
def _few_rows(
    p_x,
    p_w,
    p_out,
    stride_x,
    stride_out,
    N,
    p_streams,
    p_part,
    K: tl.constexpr,
    R: tl.constexpr,
    INJECT: tl.constexpr,
    LOWRANK: tl.constexpr,
    STREAMS: tl.constexpr,
    BN: tl.constexpr,
    K1: tl.constexpr,
    K2: tl.constexpr,
):
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    m_n = o_n < N
    o_1, o_2 = tl.arange(0, K1), K1 + tl.arange(0, K2)
    m_2 = o_2 < K
    p_row = p_w + o_n[:, None].to(tl.int64) * K
    b_1 = tl.load(p_row + o_1[None, :], mask=m_n[:, None], other=0.0)
    b_2 = tl.load(p_row + o_2[None, :], mask=m_n[:, None] & m_2[None, :], other=0.0)
    chain()
    for r in tl.static_range(R):
        b_y = dot_row(b_1, b_2, p_x + r * stride_x, o_1, o_2, m_2)
        if INJECT:
            for c in tl.static_range(STREAMS):
                logit = 0.0
                for s in tl.static_range(STREAMS):
                    logit += tl.load(p_part + (s * R + r) * (LOWRANK + STREAMS) + LOWRANK + c)
                p_s = p_streams + (r * STREAMS + c) * N + o_n
                b_s = tl.load(p_s, mask=m_n, other=0.0) + 2.0 * tl.sigmoid(logit / STREAMS) * b_y
                tl.store(p_s, b_s, mask=m_n)
        else:
            tl.store(p_out + r * stride_out + o_n, b_y, mask=m_n)


@triton.jit
def _tensor_rows(
    p_x,
    p_w,
    p_out,
    stride_x,
    stride_out,
    N,
    p_streams,
    p_part,
    K: tl.constexpr,
    R: tl.constexpr,
    INJECT: tl.constexpr,
    LOWRANK: tl.constexpr,
    STREAMS: tl.constexpr,
    EMULATED: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    chain()
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    m_n = o_n < N
    acc = tl.zeros([16, BN], tl.float32)
    p_row = p_w + o_n[None, :].to(tl.int64) * K
    for k in tl.range(0, K, BK):
        o_k = k + tl.arange(0, BK)
        m_k = o_k < K
        b_w = tl.load(p_row + o_k[:, None], mask=m_n[None, :] & m_k[:, None], other=0.0)
        b_x = split_rows(p_x, stride_x, o_k, m_k, R)
        if EMULATED:  # the interpreter's bf16 products are wrong
            acc += tl.dot(b_x.to(tl.float32), b_w.to(tl.float32))
        else:
            acc = tl.dot(b_x, b_w.to(tl.bfloat16), acc)
    b_y = join_rows(acc, BN)
    o_r = tl.arange(0, 4)[:, None]
    m = (o_r < R) & m_n[None, :]
    if INJECT:
        for c in tl.static_range(STREAMS):
            logit = tl.zeros([4, 1], tl.float32)
            for s in tl.static_range(STREAMS):
                logit += tl.load(p_part + (s * R + o_r) * (LOWRANK + STREAMS) + LOWRANK + c, mask=o_r < R, other=0.0)
            p_s = p_streams + (o_r * STREAMS + c) * N + o_n[None, :]
            tl.store(p_s, tl.load(p_s, mask=m, other=0.0) + 2.0 * tl.sigmoid(logit / STREAMS) * b_y, mask=m)
    else:
        tl.store(p_out + o_r * stride_out + o_n[None, :], b_y, mask=m)


def tensor_rows(x: Tensor, weight: Tensor, out: Tensor, *, block: tuple[int, int, int, int]) -> Tensor:
    """As `few_rows`, on tensor cores: four rows cost what one costs. block: rows of weights, columns, warps, stages."""
    rows, width = x.shape
    bn, bk, warps, stages = block
    _tensor_rows[(triton.cdiv(weight.shape[0], bn),)](
        x, weight, out, x.stride(0), out.stride(0), weight.shape[0], x, x, K=width, R=rows, INJECT=False, LOWRANK=0,
        STREAMS=1, EMULATED=INTERPRETED, BN=bn, BK=bk, launch_pdl=PDL, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def few_rows(x: Tensor, weight: Tensor, out: Tensor, *, block: tuple[int, int] | None = None) -> Tensor:
    """`out = x @ weight.T` for x [R, K] fp32 (rows of any stride), R <= 4; weight [N, K] contiguous, any float type.

    Bitwise the same for a row whatever R is. out [R, N] fp32. block: rows of weights and warps of a program.
    """
    rows, width = x.shape
    _check(x, weight, rows)
    bn, warps = block or _block(weight.shape[0], width)
    k1, k2 = halves(width)
    _few_rows[(triton.cdiv(weight.shape[0], bn),)](
        x, weight, out, x.stride(0), out.stride(0), weight.shape[0], x, x,
        K=width, R=rows, INJECT=False, LOWRANK=0, STREAMS=1, BN=bn, K1=k1, K2=k2, launch_pdl=PDL, num_warps=warps,
    )  # fmt: skip
    return out


def few_rows_inject(
    x: Tensor, weight: Tensor, streams: Tensor, part: Tensor, *, block: tuple[int, int] | None = None
) -> None:
    """`streams[r, c] += 2 sigmoid(inject logit c of row r) * (x @ weight.T)[r]`: a block's last product and its return.

    streams [R, n, N] fp32 in place; part [n, R, lowrank + n] from hyper_connection.mix_down, inject logits last.
    """
    rows, width = x.shape
    _check(x, weight, rows)
    n = streams.shape[1]
    bn, warps = block or _block(weight.shape[0], width)
    k1, k2 = halves(width)
    _few_rows[(triton.cdiv(weight.shape[0], bn),)](
        x, weight, x, x.stride(0), 0, weight.shape[0], streams, part, K=width, R=rows, INJECT=True,
        LOWRANK=part.shape[2] - n, STREAMS=n, BN=bn, K1=k1, K2=k2, launch_pdl=PDL, num_warps=warps,
    )  # fmt: skip


def _check(x: Tensor, weight: Tensor, rows: int) -> None:
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"few_rows takes 1 to {MAX_ROWS} rows, not {rows}: use many_rows")
    if x.dtype != torch.float32 or x.stride(1) != 1 or not weight.is_contiguous() or weight.shape[1] != x.shape[1]:
        raise ValueError(
            f"x {tuple(x.shape)} {x.dtype} must be fp32 rows for weight {tuple(weight.shape)}, which is contiguous"
        )


WIDE, NARROW = [4, 2], [4, 4]  # rows of weights and warps of a program, for many and for few rows of weights


def _block(out: int, width: int) -> tuple[int, int]:
    if INTERPRETED:
        return tile(out, 8, 256), 4
    rows, warps = WIDE if out >= 4096 else NARROW
    return rows, warps


@triton.jit
def _many_rows(
    p_x,
    p_w,
    p_out,
    M,
    N,
    K,
    stride_x,
    stride_out,
    EXACT: tl.constexpr,
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
    acc = tl.zeros([BM, BN], tl.float32)
    for k in tl.range(0, K, BK):
        m_k = o_k < K - k
        b_a = tl.load(p_a, mask=(o_m < M)[:, None] & m_k[None, :], other=0.0)
        b_b = tl.load(p_b, mask=(o_n < N)[None, :] & m_k[:, None], other=0.0)
        if EXACT:
            acc = tl.dot(b_a.to(tl.float32), b_b.to(tl.float32), acc, input_precision="ieee")
        else:
            acc = tl.dot(b_a, b_b.to(b_a.dtype), acc)
        p_a += BK
        p_b += BK
    p_o = p_out + o_m[:, None].to(tl.int64) * stride_out + o_n[None, :]
    tl.store(p_o, acc.to(p_out.dtype.element_ty), mask=(o_m < M)[:, None] & (o_n < N)[None, :])


def many_rows(x: Tensor, weight: Tensor, out: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """`x @ weight.T` for x [T, K] fp32 (IEEE products) or bf16 (tensor cores); weight [N, K]; sums fp32.

    The order of the sums is fixed by K alone: a row's result does not depend on T or on its place. Returns [T, N].
    """
    rows, width = x.shape
    if x.stride(1) != 1 or not weight.is_contiguous() or weight.shape[1] != width:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)} must agree in width and be row-major")
    if out is None:
        out = torch.empty(rows, weight.shape[0], dtype=dtype, device=x.device)
    exact = x.dtype == torch.float32
    bm, bn, bk, warps, stages = (64, 64, 32, 4, 2) if exact else (128, 128, 64, 8, 3)
    if INTERPRETED:
        bm, bn, bk = min(256, max(16, triton.next_power_of_2(rows))), tile(weight.shape[0], 64, 512), 128
    grid = (triton.cdiv(rows, bm) * triton.cdiv(weight.shape[0], bn),)
    _many_rows[grid](
        x, weight, out, rows, weight.shape[0], width, x.stride(0), out.stride(0),
        EXACT=exact, BM=bm, BN=bn, BK=bk, GROUP=8, launch_pdl=PDL, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out
