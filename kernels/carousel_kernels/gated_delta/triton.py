"""DeltaNet on the GPU: a step of a few rows, convolution and rule; chunks for prefill.

The state in memory is the one before the last fed rows: a step first replays the rows that were accepted since, writes
the state, then computes its own rows without writing. Taking rows back is therefore setting a length, at no traffic.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import INTERPRETED, PDL, chain, silu, when

CHUNK = 64


@triton.jit
def _conv(start, p_y, p_ring, p_taps, t, o_c, m_c, stride_y, C: tl.constexpr, W: tl.constexpr, TAPS: tl.constexpr):
    """silu of the convolution at position t for channels o_c; rows from position start on are in y, earlier in the
    ring."""
    acc = tl.zeros([o_c.shape[0]], tl.float32)
    for j in tl.static_range(TAPS):
        at = t - (TAPS - 1) + j
        b_x = tl.load(p_y + (at - start) * stride_y + o_c, mask=when(m_c, at >= start), other=0.0)
        b_x += tl.load(p_ring + (at % W) * C + o_c, mask=when(m_c, (at >= 0) & (at < start)), other=0.0)
        acc += b_x * tl.load(p_taps + j * C + o_c, mask=m_c, other=0.0)
    return silu(acc)


@triton.jit
def _rows(
    p_y,
    p_ring,
    p_replay,
    p_taps,
    p_decay,
    p_bias,
    p_where,
    stride_y,
    KH: tl.constexpr,
    VH: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    W: tl.constexpr,
    TAPS: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    chain()
    i_r, i_h = tl.program_id(0), tl.program_id(1)
    C: tl.constexpr = 2 * KH * DK + VH * DV
    slot, start = tl.load(p_where), tl.load(p_where + 1)
    t = start + i_r
    p_ring += slot * W * C
    p_o = p_ring + (t % W) * C
    p_r = p_y + i_r * stride_y
    p_out = p_replay + (slot * W + t % W) * (C + 2 * VH)
    o_k, o_v = tl.arange(0, BK), tl.arange(0, BV)
    m_k, m_v = o_k < DK, o_v < DV
    c_v = 2 * KH * DK + i_h * DV + o_v
    b_v = _conv(start, p_y, p_ring, p_taps, t, c_v, m_v, stride_y, C, W, TAPS)
    tl.store(p_out + c_v, b_v, mask=m_v)
    tl.store(p_o + c_v, tl.load(p_r + c_v, mask=m_v, other=0.0), mask=m_v)
    if i_h % (VH // KH) == 0:
        c_q = i_h // (VH // KH) * DK + o_k
        b_q = _conv(start, p_y, p_ring, p_taps, t, c_q, m_k, stride_y, C, W, TAPS)
        b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q) + 1e-6) / tl.sqrt(DK * 1.0)
        c_k = KH * DK + c_q
        b_k = _conv(start, p_y, p_ring, p_taps, t, c_k, m_k, stride_y, C, W, TAPS)
        b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k) + 1e-6)
        tl.store(p_out + c_q, b_q, mask=m_k)
        tl.store(p_out + c_k, b_k, mask=m_k)
        tl.store(p_o + c_q, tl.load(p_r + c_q, mask=m_k, other=0.0), mask=m_k)
        tl.store(p_o + c_k, tl.load(p_r + c_k, mask=m_k, other=0.0), mask=m_k)
    x = tl.load(p_r + C + VH * DV + VH + i_h) + tl.load(p_bias + i_h)
    soft = tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))
    tl.store(p_out + C + i_h, tl.exp(tl.load(p_decay + i_h) * soft))
    tl.store(p_out + C + VH + i_h, tl.sigmoid(tl.load(p_r + C + VH * DV + i_h)))


@triton.jit
def _states(
    p_replay,
    p_state,
    p_out,
    p_where,
    p_applied,
    rows,
    KH: tl.constexpr,
    VH: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    W: tl.constexpr,
    FLUSH: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    i_h, i_v = tl.program_id(0), tl.program_id(1)
    C: tl.constexpr = 2 * KH * DK + VH * DV
    slot, start = tl.load(p_where), tl.load(p_where + 1)
    done = tl.load(p_applied + slot)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < DK, o_v < DV
    p_s = p_state + (slot * VH + i_h) * DK * DV + o_k[:, None] * DV + o_v[None, :]
    m_s = m_k[:, None] & m_v[None, :]
    b_s = tl.load(p_s, mask=when(m_s, done > 0), other=0.0)  # of an earlier step: need not wait
    chain()
    p_replay += slot * W * (C + 2 * VH)
    for t in range(done, start + rows):
        if t == start:
            tl.store(p_s, b_s, mask=m_s)
        p_r = p_replay + (t % W) * (C + 2 * VH)
        o_q = i_h // (VH // KH) * DK + o_k
        b_q = tl.load(p_r + o_q, mask=m_k, other=0.0)
        b_k = tl.load(p_r + KH * DK + o_q, mask=m_k, other=0.0)
        b_v = tl.load(p_r + 2 * KH * DK + i_h * DV + o_v, mask=m_v, other=0.0)
        b_s = b_s * tl.load(p_r + C + i_h)
        b_d = (b_v - tl.sum(b_s * b_k[:, None], 0)) * tl.load(p_r + C + VH + i_h)
        b_s += b_k[:, None] * b_d[None, :]
        b_o = tl.sum(b_s * b_q[:, None], 0)
        tl.store(p_out + (t - start) * VH * DV + i_h * DV + o_v, b_o, mask=when(m_v, t >= start))
    if FLUSH:
        tl.store(p_s, b_s, mask=m_s)


def step(
    y: Tensor,
    ring: Tensor,
    replay: Tensor,
    states: Tensor,
    taps: Tensor,
    decay: Tensor,
    dt_bias: Tensor,
    out: Tensor,
    where: Tensor,
    applied: Tensor,
    *,
    key_heads: int,
    flush: bool = False,
) -> None:
    """Convolution and delta rule of R <= 4 rows of the sequence in slot where[0], from position where[1] on.

    y [R, channels + width + 2 h_v]: qkv, z, b, a as projected. ring [slots, W, channels]: qkv as projected, and replay
    [slots, W, channels + 2 h_v]: q, k, v, alpha, beta as the rule takes them, of position p at p % W, W >= 8. states
    [slots, h_v, dk, dv] fp32, the state after `applied[slot]` rows, brought up to where[1] rows here; the caller sets
    applied afterwards. taps [K, channels]; out [R, h_v, dv] fp32, before norm and gate.
    `flush` takes no row of y: it only brings the state up to where[1].
    """
    rows = 0 if flush else y.shape[0]
    _, heads, dk, dv = states.shape
    window = ring.shape[1]
    if rows > 4 or window < 4 + max(4, taps.shape[0] - 1) or replay.shape[1] != window:
        raise ValueError(f"{rows} rows with rings of {window} and {replay.shape[1]}: at most 4 rows, rings of 8")
    if not (ring.is_contiguous() and replay.is_contiguous() and states.is_contiguous() and out.is_contiguous()):
        raise ValueError("rings, states and out must be contiguous")
    sizes = {"KH": key_heads, "VH": heads, "DK": dk, "DV": dv, "W": window}
    bk, bv = triton.next_power_of_2(dk), triton.next_power_of_2(dv)
    if rows:
        _rows[(rows, heads)](
            y, ring, replay, taps, decay, dt_bias, where, y.stride(0),
            **sizes, TAPS=taps.shape[0], BK=bk, BV=bv, launch_pdl=PDL, num_warps=2,
        )  # fmt: skip
    split = bv if INTERPRETED else min(bv, 32)
    _states[(heads, triton.cdiv(dv, split))](
        replay, states, out, where, applied, rows, **sizes, FLUSH=flush, BK=bk, BV=split, launch_pdl=PDL, num_warps=4
    )


@triton.jit
def _prepare(
    p_qkv,
    p_ab,
    p_decay,
    p_bias,
    p_u,
    p_w,
    p_in,
    p_g,
    T,
    stride_ab,
    KH: tl.constexpr,
    VH: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    PRECISION: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    chain()
    i_n, i_h = tl.program_id(0), tl.program_id(1)
    C: tl.constexpr = 2 * KH * DK + VH * DV
    o_t, o_k, o_v = i_n * BT + tl.arange(0, BT), tl.arange(0, BK), tl.arange(0, BV)
    m_t, m_k, m_v = o_t < T, o_k < DK, o_v < DV
    i_kh = i_h // (VH // KH)
    p_row = p_qkv + o_t[:, None].to(tl.int64) * C
    m_tk, m_tv = m_t[:, None] & m_k[None, :], m_t[:, None] & m_v[None, :]
    b_q = tl.load(p_row + (i_kh * DK + o_k)[None, :], mask=m_tk, other=0.0).to(tl.float32)
    b_k = tl.load(p_row + (KH * DK + i_kh * DK + o_k)[None, :], mask=m_tk, other=0.0).to(tl.float32)
    b_v = tl.load(p_row + (2 * KH * DK + i_h * DV + o_v)[None, :], mask=m_tv, other=0.0).to(tl.float32)
    b_q = b_q * (tl.rsqrt(tl.sum(b_q * b_q, 1) + 1e-6) / tl.sqrt(DK * 1.0))[:, None]
    b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, 1) + 1e-6)[:, None]
    b_b = tl.sigmoid(tl.load(p_ab + o_t * stride_ab + i_h, mask=m_t, other=0.0))
    b_b = tl.where(m_t, b_b, 0.0)
    x = tl.load(p_ab + o_t * stride_ab + VH + i_h, mask=m_t, other=0.0) + tl.load(p_bias + i_h)
    soft = tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))
    b_g = tl.cumsum(tl.where(m_t, tl.load(p_decay + i_h) * soft, 0.0), 0)
    o_i = tl.arange(0, BT)
    lower = o_i[:, None] >= o_i[None, :]
    b_f = tl.where(lower, tl.exp(tl.where(lower, b_g[:, None] - b_g[None, :], 0.0)), 0.0)
    b_kt = tl.trans(b_k)
    b_a = tl.dot(b_k * b_b[:, None], b_kt, input_precision=PRECISION) * b_f
    b_a = tl.where(o_i[:, None] > o_i[None, :], b_a, 0.0)
    b_t = tl.where(o_i[:, None] == o_i[None, :], 1.0, 0.0)
    for i in range(1, BT):  # forward substitution, one row at a time
        b_row = tl.sum(tl.where(o_i[:, None] == i, b_a, 0.0), 0)
        b_new = tl.sum(b_row[:, None] * b_t, 0)
        b_t = tl.where(o_i[:, None] == i, b_t - b_new[None, :], b_t)
    b_u = tl.dot(b_t, b_v * b_b[:, None], input_precision=PRECISION)
    b_w = tl.dot(b_t, b_k * (b_b * tl.exp(b_g))[:, None], input_precision=PRECISION)
    b_in = tl.dot(b_q, b_kt, input_precision=PRECISION) * b_f
    o_th = (o_t.to(tl.int64) * VH + i_h)[:, None]
    tl.store(p_u + o_th * DV + o_v[None, :], b_u, mask=m_tv)
    tl.store(p_w + o_th * DK + o_k[None, :], b_w, mask=m_tk)
    tl.store(p_in + o_th * BT + o_i[None, :], b_in, mask=m_t[:, None])
    tl.store(p_g + o_t * VH + i_h, b_g, mask=m_t)


@triton.jit
def _scan(
    p_qkv,
    p_u,
    p_w,
    p_in,
    p_g,
    p_state,
    p_out,
    T,
    KH: tl.constexpr,
    VH: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    PRECISION: tl.constexpr,
    FRESH: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    chain()
    i_h, i_v = tl.program_id(0), tl.program_id(1)
    C: tl.constexpr = 2 * KH * DK + VH * DV
    o_i, o_k, o_v = tl.arange(0, BT), tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    m_k, m_v = o_k < DK, o_v < DV
    i_kh = i_h // (VH // KH)
    p_s = p_state + i_h * DK * DV + o_k[:, None] * DV + o_v[None, :]
    m_s = m_k[:, None] & m_v[None, :]
    b_s = tl.zeros([BK, BV], tl.float32) if FRESH else tl.load(p_s, mask=m_s, other=0.0)
    for t in range(0, T, BT):
        o_t = t + o_i
        m_t = o_t < T
        m_tk, m_tv = m_t[:, None] & m_k[None, :], m_t[:, None] & m_v[None, :]
        p_row = p_qkv + o_t[:, None].to(tl.int64) * C
        b_q = tl.load(p_row + (i_kh * DK + o_k)[None, :], mask=m_tk, other=0.0).to(tl.float32)
        b_k = tl.load(p_row + (KH * DK + i_kh * DK + o_k)[None, :], mask=m_tk, other=0.0).to(tl.float32)
        b_q = b_q * (tl.rsqrt(tl.sum(b_q * b_q, 1) + 1e-6) / tl.sqrt(DK * 1.0))[:, None]
        b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, 1) + 1e-6)[:, None]
        o_th = (o_t.to(tl.int64) * VH + i_h)[:, None]
        b_g = tl.load(p_g + o_t * VH + i_h, mask=m_t, other=0.0)
        last = tl.load(p_g + (tl.minimum(t + BT, T) - 1) * VH + i_h)
        b_u = tl.load(p_u + o_th * DV + o_v[None, :], mask=m_tv, other=0.0)
        b_w = tl.load(p_w + o_th * DK + o_k[None, :], mask=m_tk, other=0.0)
        b_in = tl.load(p_in + o_th * BT + o_i[None, :], mask=m_t[:, None], other=0.0)
        b_n = b_u - tl.dot(b_w, b_s, input_precision=PRECISION)
        b_o = tl.dot(b_q * tl.exp(b_g)[:, None], b_s, input_precision=PRECISION)
        b_o += tl.dot(b_in, b_n, input_precision=PRECISION)
        tl.store(p_out + o_th * DV + o_v[None, :], b_o.to(p_out.dtype.element_ty), mask=m_tv)
        b_k = b_k * tl.where(m_t, tl.exp(last - b_g), 0.0)[:, None]
        b_s = b_s * tl.exp(last) + tl.dot(tl.trans(b_k), b_n, input_precision=PRECISION)
    tl.store(p_s, b_s, mask=m_s)


def chunked(
    qkv: Tensor, ab: Tensor, decay: Tensor, dt_bias: Tensor, state: Tensor, *, key_heads: int, fresh: bool, exact: bool
) -> Tensor:
    """The rule for many rows, 64 at a time, the chunks counted from the first row.

    qkv [T, channels] after convolution and silu, contiguous; ab [T, 2 h_v] (b then a, any row stride) fp32;
    state [h_v, dk, dv] fp32 in place, read as zero when `fresh`; exact: IEEE products, else TF32. Returns [T, h_v,
    dv] fp32.
    """
    rows = qkv.shape[0]
    heads, dk, dv = state.shape

    def make(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.float32, device=qkv.device)

    u, w, out = make(rows, heads, dv), make(rows, heads, dk), make(rows, heads, dv)
    within, g = make(rows, heads, CHUNK), make(rows, heads)
    bk, bv = max(16, triton.next_power_of_2(dk)), max(16, triton.next_power_of_2(dv))
    common = {
        "KH": key_heads,
        "VH": heads,
        "DK": dk,
        "DV": dv,
        "PRECISION": "ieee" if exact else "tf32",
        "BT": CHUNK,
        "BK": bk,
    }
    _prepare[(triton.cdiv(rows, CHUNK), heads)](
        qkv, ab, decay, dt_bias, u, w, within, g, rows, ab.stride(0), **common, BV=bv, launch_pdl=PDL, num_warps=4
    )
    split = max(16, bv // 4) if not exact else bv
    _scan[(heads, triton.cdiv(dv, split))](
        qkv,
        u,
        w,
        within,
        g,
        state,
        out,
        rows,
        FRESH=fresh,
        **common,
        BV=split,
        launch_pdl=PDL,
        num_warps=4,
        num_stages=1,
    )
    return out
