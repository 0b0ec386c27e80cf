"""Gated norm on the GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import INTERPRETED, PDL, chain, silu


@triton.jit
def _gated(
    p_x, p_scale, p_gate, p_out, stride_gate, eps,
    HEADS: tl.constexpr, D: tl.constexpr, SIGMOID: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    chain()
    i_t = tl.program_id(0).to(tl.int64)
    o_h, o_d = tl.program_id(1) * BH + tl.arange(0, BH), tl.arange(0, BD)
    m = (o_h < HEADS)[:, None] & (o_d < D)[None, :]
    o = o_h[:, None] * D + o_d[None, :]
    b_x = tl.load(p_x + i_t * HEADS * D + o, mask=m, other=0.0)
    b_g = tl.load(p_gate + i_t * stride_gate + o, mask=m, other=0.0).to(tl.float32)
    b_x = b_x / tl.sqrt(tl.sum(b_x * b_x, 1) / D + eps)[:, None]
    b_x = b_x * tl.load(p_scale + o_d, mask=o_d < D, other=0.0)[None, :]
    b_g = tl.sigmoid(b_g) if SIGMOID else silu(b_g)
    tl.store(p_out + i_t * HEADS * D + o, (b_x * b_g).to(p_out.dtype.element_ty), mask=m)


def gated_rms_norm(
    x: Tensor, scale: Tensor, gate: Tensor, eps: float, sigmoid: bool, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """`rms_norm(x) * activation(gate)`: x [T, h, d] fp32 contiguous; scale [d]; gate [T, h * d], any row stride."""
    rows, heads, width = x.shape
    if out is None:
        out = torch.empty(rows, heads * width, dtype=dtype, device=x.device)
    bh = triton.next_power_of_2(heads) if INTERPRETED else min(4 if rows <= 4 else 16, triton.next_power_of_2(heads))
    _gated[(rows, triton.cdiv(heads, bh))](
        x, scale, gate, out, gate.stride(0), eps,
        HEADS=heads, D=width, SIGMOID=sigmoid, BH=bh, BD=triton.next_power_of_2(width), launch_pdl=PDL, num_warps=4,
    )  # fmt: skip
    return out
