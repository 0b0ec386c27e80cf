"""Depthwise causal convolution of many rows on the GPU (a few rows are part of other kernels)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import INTERPRETED, silu


@triton.jit
def _conv(
    p_x,
    p_ring,
    p_taps,
    p_out,
    start,
    rows,
    C,
    stride_x,
    stride_ring,
    W: tl.constexpr,
    TAPS: tl.constexpr,
    DILATION: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
):
    o_t = tl.program_id(0) * BT + tl.arange(0, BT)
    o_c = tl.program_id(1) * BC + tl.arange(0, BC)
    m_c = o_c < C
    acc = tl.zeros([BT, BC], tl.float32)
    for j in tl.static_range(TAPS):
        o_a = o_t - (TAPS - 1 - j) * DILATION
        m_a = (o_a >= 0) & (o_t < rows)
        b_x = tl.load(p_x + o_a[:, None].to(tl.int64) * stride_x + o_c, mask=m_a[:, None] & m_c, other=0.0)
        at = start + o_a
        m_r = (o_a < 0) & (at >= 0) & (o_t < rows)
        b_r = tl.load(p_ring + (at % W)[:, None] * stride_ring + o_c, mask=m_r[:, None] & m_c, other=0.0)
        acc += (b_x.to(tl.float32) + b_r) * tl.load(p_taps + j * C + o_c, mask=m_c, other=0.0)
    p_o = p_out + o_t[:, None].to(tl.int64) * C + o_c
    tl.store(p_o, silu(acc).to(p_out.dtype.element_ty), mask=(o_t < rows)[:, None] & m_c)


def causal_conv(x: Tensor, ring: Tensor, taps: Tensor, start: int, dilation: int, dtype: torch.dtype) -> Tensor:
    """`silu` of the convolution for rows at start, start + 1, ...; the ring is read here and written by `keep`.

    x [T, C] (any row stride); ring [W, >= C] fp32, the row of position p at p % W; taps [K, C] fp32. Returns [T, C].
    """
    rows, channels = x.shape
    out = torch.empty(rows, channels, dtype=dtype, device=x.device)
    bt, bc = (256, 512) if INTERPRETED else (16, 128)
    _conv[(triton.cdiv(rows, bt), triton.cdiv(channels, bc))](
        x, ring, taps, out, start, rows, channels, x.stride(0), ring.stride(0),
        W=ring.shape[0], TAPS=taps.shape[0], DILATION=dilation, BT=bt, BC=bc, num_warps=4,
    )  # fmt: skip
    return out


def keep(x: Tensor, ring: Tensor, start: int) -> None:
    """Write the last rows of x [T, C] into the ring [W, C], by position."""
    rows, window = x.shape[0], ring.shape[0]
    kept = min(rows, window)
    at = torch.arange(start + rows - kept, start + rows, device=x.device).remainder_(window)
    ring[at] = x[rows - kept :].to(ring.dtype)
