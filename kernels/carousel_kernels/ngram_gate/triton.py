"""The n-gram injection on the GPU: gate, norm, dilated convolution and the return to the streams."""

import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import INTERPRETED, PDL, chain, silu, when


@triton.jit
def _gate(
    p_streams,
    p_y,
    p_key_scale,
    p_query_scale,
    p_conv_scale,
    p_v,
    p_u,
    stride_y,
    eps,
    H: tl.constexpr,
    STREAMS: tl.constexpr,
    BH: tl.constexpr,
):
    chain()
    i_t, i_c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_h = tl.arange(0, BH)
    m_h = o_h < H
    o_c = i_c * H + o_h
    b_k = tl.load(p_y + i_t * stride_y + o_c, mask=m_h, other=0.0).to(tl.float32)
    b_s = tl.load(p_streams + i_t * STREAMS * H + o_c, mask=m_h, other=0.0)
    b_v = tl.load(p_y + i_t * stride_y + STREAMS * H + o_h, mask=m_h, other=0.0).to(tl.float32)
    b_k = b_k / tl.sqrt(tl.sum(b_k * b_k) / H + eps) * tl.load(p_key_scale + o_c, mask=m_h, other=0.0)
    b_s = b_s / tl.sqrt(tl.sum(b_s * b_s) / H + eps) * tl.load(p_query_scale + o_c, mask=m_h, other=0.0)
    a = tl.sum(b_k * b_s) / tl.sqrt(H * 1.0)
    size = tl.sqrt(tl.maximum(tl.abs(a), 1e-6))
    b_v = tl.sigmoid(tl.where(a > 0, size, tl.where(a < 0, -size, 0.0))) * b_v
    b_u = b_v / tl.sqrt(tl.sum(b_v * b_v) / H + eps) * tl.load(p_conv_scale + o_c, mask=m_h, other=0.0)
    tl.store(p_v + i_t * STREAMS * H + o_c, b_v, mask=m_h)
    tl.store(p_u + i_t * STREAMS * H + o_c, b_u, mask=m_h)


@triton.jit
def _inject(
    p_streams,
    p_v,
    p_u,
    p_ring,
    p_taps,
    p_where,
    rows,
    C,
    W: tl.constexpr,
    TAPS: tl.constexpr,
    DILATION: tl.constexpr,
    KEEP: tl.constexpr,
    BC: tl.constexpr,
):
    chain()
    i_t = tl.program_id(0).to(tl.int64)
    o_c = tl.program_id(1) * BC + tl.arange(0, BC)
    m_c = o_c < C
    slot, start = tl.load(p_where), tl.load(p_where + 1)
    p_r = p_ring + slot * W * C + o_c
    t = start + i_t
    acc = tl.zeros([BC], tl.float32)
    for j in tl.static_range(TAPS):
        at = t - (TAPS - 1 - j) * DILATION
        b = tl.load(p_u + (at - start) * C + o_c, mask=when(m_c, at >= start), other=0.0)
        b += tl.load(p_r + (at % W) * C, mask=when(m_c, (at >= 0) & (at < start)), other=0.0)
        acc += b * tl.load(p_taps + j * C + o_c, mask=m_c, other=0.0)
    o_s = i_t * C + o_c
    b_s = tl.load(p_streams + o_s, mask=m_c, other=0.0) + tl.load(p_v + o_s, mask=m_c, other=0.0) + silu(acc)
    tl.store(p_streams + o_s, b_s, mask=m_c)
    if KEEP:
        tl.store(p_r + (t % W) * C, tl.load(p_u + o_s, mask=m_c, other=0.0), mask=m_c)


def inject(
    streams: Tensor,
    y: Tensor,
    key_scale: Tensor,
    query_scale: Tensor,
    conv_scale: Tensor,
    taps: Tensor,
    ring: Tensor,
    where: Tensor,
    work: tuple[Tensor, Tensor],
    *,
    dilation: int,
    eps: float,
    keep: bool = True,
) -> None:
    """`streams += V + silu(conv(rms_norm(V)))`, V the gated value, for the rows from position where[1] on.

    streams [T, n, H] fp32 in place; y [T, n * H + H], key and value products; scales [n, H]; taps [K, n * H];
    ring [slots, W, n * H] fp32 by position % W, of slot where[0]; work = two buffers like streams, the second holds the
    rows for the ring afterwards. `keep` writes them, only for T <= W - (K - 1) * dilation rows.
    """
    rows, n, width = streams.shape
    v, u = work
    if keep and rows > ring.shape[1] - (taps.shape[0] - 1) * dilation:
        raise ValueError(f"{rows} rows overrun a ring of {ring.shape[1]}: write it afterwards")
    bh = triton.next_power_of_2(width)
    _gate[(rows, n)](
        streams,
        y,
        key_scale,
        query_scale,
        conv_scale,
        v,
        u,
        y.stride(0),
        eps,
        H=width,
        STREAMS=n,
        BH=bh,
        launch_pdl=PDL,
        num_warps=4,
    )
    bc = 16384 if INTERPRETED else 512
    _inject[(rows, triton.cdiv(n * width, bc))](
        streams, v, u, ring, taps, where, rows, n * width,
        W=ring.shape[1], TAPS=taps.shape[0], DILATION=dilation, KEEP=keep, BC=bc, launch_pdl=PDL, num_warps=4,
    )  # fmt: skip
