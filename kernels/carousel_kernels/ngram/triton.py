"""N-gram rows on the GPU: hashed there and gathered from where the table lies, device memory or registered host
memory."""

import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import PDL, chain


@triton.jit
def _gather(
    p_tokens,
    p_where,
    p_multipliers,
    p_sizes,
    p_offsets,
    p_shards,
    p_out,
    capacity,
    height,
    scale,
    reset,
    N: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    DTYPE: tl.constexpr,
    BW: tl.constexpr,
):
    chain()
    i_r, i_g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot, t = tl.load(p_where), tl.load(p_where + 1 + i_r)
    p_t = p_tokens + slot * capacity + t
    level = i_g // HEADS + 1  # tokens back that enter this head's hash
    h = tl.load(p_t).to(tl.int64) * tl.load(p_multipliers)
    closed = 0
    for back in tl.static_range(1, N):
        token = tl.load(p_t - back, mask=t >= back, other=0).to(tl.int64)
        closed = tl.where((t < back) | (token == reset), 1, closed)
        token = tl.where(closed == 1, reset, token)
        h = tl.where(back <= level, h ^ (token * tl.load(p_multipliers + back)), h)
    size = tl.load(p_sizes + i_g)
    row = h % size
    row = tl.where(row < 0, row + size, row) + tl.load(p_offsets + i_g)
    o_w = tl.arange(0, BW)
    m_w = o_w < WIDTH
    address = tl.load(p_shards + row // height)
    b = tl.load(address.to(tl.pointer_type(DTYPE)) + (row % height) * WIDTH + o_w, mask=m_w, other=0.0).to(tl.float32)
    tl.store(p_out + (i_r * (N - 1) * HEADS + i_g) * WIDTH + o_w, (b * scale).to(p_out.dtype.element_ty), mask=m_w)


TYPES = {"torch.float8_e4m3fn": tl.float8e4nv, "torch.bfloat16": tl.bfloat16, "torch.float32": tl.float32}


def gather(
    tokens: Tensor,
    where: Tensor,
    multipliers: Tensor,
    sizes: Tensor,
    offsets: Tensor,
    shards: Tensor,
    height: int,
    table: str,
    scale: float,
    reset: int,
    out: Tensor,
    *,
    early: bool = True,
) -> Tensor:
    """Embeddings of the tokens at positions where[1:] of slot where[0].

    tokens [slots, capacity] int64; multipliers [N], sizes, offsets [G] int64; shards [number] int64, device-visible
    addresses of [height, w] shards of type `table` (str of the dtype); out [T, G * w], fp32 or bf16.
    early: it may start while the kernel before it ends.
    """
    rows, width = out.shape
    groups = sizes.shape[0]
    n = multipliers.shape[0]
    w = width // groups
    if table not in TYPES:
        raise ValueError(f"an n-gram table of {table} cannot be gathered: {', '.join(TYPES)} can")
    _gather[(rows, groups)](
        tokens, where, multipliers, sizes, offsets, shards, out, tokens.stride(0), height, scale, reset,
        N=n, HEADS=groups // (n - 1), WIDTH=w, DTYPE=TYPES[table], BW=triton.next_power_of_2(w),
        launch_pdl=PDL and early, num_warps=1,
    )  # fmt: skip
    return out
