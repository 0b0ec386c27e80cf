"""Before attention on the GPU: norm and rope of queries, keys and index queries, and every write into the caches."""

import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import PDL, chain, when


@triton.jit
def _turned(p_x, p_scale, p_cos, p_sin, t, o, m, eps, D: tl.constexpr, ROT: tl.constexpr):
    """rms_norm then rope at position t of the vector at p_x; o, m its offsets and mask."""
    b_x = tl.load(p_x + o, mask=m, other=0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(b_x * b_x) / D + eps)
    o_p = tl.where(o < ROT, o + ROT, o - ROT)
    m_r = o < 2 * ROT
    b_p = tl.load(p_x + o_p, mask=m_r, other=0.0) * tl.load(p_scale + o_p, mask=m_r, other=0.0) * rstd
    b_x = b_x * tl.load(p_scale + o, mask=m, other=0.0) * rstd
    b_c = tl.load(p_cos + t * ROT + o % ROT, mask=m_r, other=1.0)
    b_s = tl.load(p_sin + t * ROT + o % ROT, mask=m_r, other=0.0)
    return tl.where(m_r, b_x * b_c + tl.where(o < ROT, -b_p, b_p) * b_s, b_x)


@triton.jit
def _raw(p_y, p_tail, at, first, last, rows, o, m, stride_y, W: tl.constexpr, DI: tl.constexpr):
    """The raw index key of position `at`: of this call's rows, or of the ring."""
    b = tl.load(p_y + (rows - 1 - (last - at)) * stride_y + o, mask=when(m, at >= first), other=0.0)
    return b + tl.load(p_tail + (at % W) * DI + o, mask=when(m, at < first), other=0.0)


@triton.jit
def _prepare(
    p_y,
    p_q,
    p_iq,
    p_keys,
    p_values,
    p_tail,
    p_ikeys,
    p_qs,
    p_ks,
    p_iqs,
    p_iks,
    p_cos,
    p_sin,
    p_where,
    rows,
    stride_y,
    CTX,
    eps,
    NH: tl.constexpr,
    KVH: tl.constexpr,
    D: tl.constexpr,
    IH: tl.constexpr,
    DI: tl.constexpr,
    ROT: tl.constexpr,
    RATIO: tl.constexpr,
    W: tl.constexpr,
    TAIL: tl.constexpr,
    BD: tl.constexpr,
    BI: tl.constexpr,
):
    chain()
    i_r, i_u = tl.program_id(0), tl.program_id(1)
    slot, t = tl.load(p_where), tl.load(p_where + 1 + i_r)
    o_d, o_i = tl.arange(0, BD), tl.arange(0, BI)
    m_d, m_i = o_d < D, o_i < DI
    p_r = p_y + i_r.to(tl.int64) * stride_y
    if i_u < NH:
        b_x = _turned(p_r + i_u * 2 * D, p_qs, p_cos, p_sin, t, o_d, m_d, eps, D, ROT)
        tl.store(p_q + (i_r.to(tl.int64) * NH + i_u) * D + o_d, b_x, mask=m_d)
    elif i_u < NH + KVH:
        i_h = i_u - NH
        p_c = ((slot * KVH + i_h) * CTX + t) * D + o_d
        b_x = _turned(p_r + (2 * NH + i_h) * D, p_ks, p_cos, p_sin, t, o_d, m_d, eps, D, ROT)
        tl.store(p_keys + p_c, b_x.to(p_keys.dtype.element_ty), mask=m_d)
        b_v = tl.load(p_r + (2 * NH + KVH + i_h) * D + o_d, mask=m_d, other=0.0)
        tl.store(p_values + p_c, b_v.to(p_values.dtype.element_ty), mask=m_d)
    elif i_u < NH + KVH + IH:
        i_h = i_u - NH - KVH
        p_i = p_r + (2 * NH + 2 * KVH) * D + i_h * DI
        b_i = _turned(p_i, p_iqs, p_cos, p_sin, t, o_i, m_i, eps, DI, ROT)
        tl.store(p_iq + (i_r.to(tl.int64) * IH + i_h) * DI + o_i, b_i, mask=m_i)
    else:
        first, last = tl.load(p_where + 1), tl.load(p_where + rows)
        p_n = p_y + (2 * NH + 2 * KVH) * D + IH * DI
        p_t = p_tail + slot * W * DI
        if TAIL:
            b_n = tl.load(p_n + i_r.to(tl.int64) * stride_y + o_i, mask=m_i, other=0.0)
            tl.store(p_t + (t % W) * DI + o_i, b_n, mask=m_i)
        if (t + 1) % RATIO == 0:
            o_p = tl.where(o_i < ROT, o_i + ROT, o_i - ROT)
            m_r = o_i < 2 * ROT
            b_m = tl.zeros([BI], tl.float32)
            b_p = tl.zeros([BI], tl.float32)
            for j in tl.static_range(RATIO):
                at = t - (RATIO - 1) + j
                b_m += _raw(p_n, p_t, at, first, last, rows, o_i, m_i, stride_y, W, DI)
                b_p += _raw(p_n, p_t, at, first, last, rows, o_p, m_r, stride_y, W, DI)
            b_m, b_p = b_m / RATIO, b_p / RATIO
            rstd = 1.0 / tl.sqrt(tl.sum(b_m * b_m) / DI + eps)
            b_p = b_p * tl.load(p_iks + o_p, mask=m_r, other=0.0) * rstd
            b_m = b_m * tl.load(p_iks + o_i, mask=m_i, other=0.0) * rstd
            head = t - (RATIO - 1)
            b_c = tl.load(p_cos + head * ROT + o_i % ROT, mask=m_r, other=1.0)
            b_s = tl.load(p_sin + head * ROT + o_i % ROT, mask=m_r, other=0.0)
            b_m = tl.where(m_r, b_m * b_c + tl.where(o_i < ROT, -b_p, b_p) * b_s, b_m)
            p_o = p_ikeys + (slot * (CTX // RATIO) + t // RATIO) * DI + o_i
            tl.store(p_o, b_m.to(p_ikeys.dtype.element_ty), mask=m_i)


def prepare(
    y: Tensor,
    q: Tensor,
    index_q: Tensor,
    keys: Tensor,
    values: Tensor,
    tail: Tensor,
    index_keys: Tensor,
    scales: tuple[Tensor, Tensor, Tensor, Tensor],
    cos: Tensor,
    sin: Tensor,
    where: Tensor,
    *,
    ratio: int,
    eps: float,
    write_tail: bool = True,
) -> None:
    """Everything between the projection and attention, for the rows at positions where[1:] of slot where[0].

    y [T, 2 h d + 2 h_kv d + (h_i + 1) d_i] fp32 as projected. q [T, h, d] and index_q [T, h_i, d_i] fp32 are written;
    keys, values [slots, h_kv, capacity, d]; tail [slots, W, d_i] raw index keys by position % W; index_keys
    [slots, capacity / ratio, d_i], for every block that a row completes. scales: q [d], k [d], index q, index k [d_i].
    Positions rise by one, except that the first may repeat. `write_tail` only for T <= W - ratio + 1 rows.
    """
    rows, heads, width = q.shape
    _, kv, context, _ = keys.shape
    _, index_heads, index_dim = index_q.shape
    if y.shape[1] != (2 * heads + 2 * kv) * width + (index_heads + 1) * index_dim:
        raise ValueError(
            f"y of width {y.shape[1]} does not hold {heads} queries of {width} and an index of {index_dim}"
        )
    if write_tail and rows > tail.shape[1] - ratio + 1:
        raise ValueError(f"{rows} rows overrun a ring of {tail.shape[1]} raw keys: write the tail afterwards")
    _prepare[(rows, heads + kv + index_heads + 1)](
        y, q, index_q, keys, values, tail, index_keys, *scales, cos, sin, where, rows, y.stride(0), context, eps,
        NH=heads, KVH=kv, D=width, IH=index_heads, DI=index_dim, ROT=cos.shape[1], RATIO=ratio, W=tail.shape[1],
        TAIL=write_tail, BD=triton.next_power_of_2(width), BI=triton.next_power_of_2(index_dim),
        launch_pdl=PDL, num_warps=2,
    )  # fmt: skip
