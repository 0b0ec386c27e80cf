"""The draft head's input on the GPU: which rows it takes, their norms, and the sum of its two products."""

import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.linear.triton import few_rows
from carousel_kernels.row_dot import PDL, chain


@triton.jit
def _norms(
    p_hidden,
    p_tokens,
    p_embedding,
    p_escale,
    p_hscale,
    p_e,
    p_h,
    p_from,
    p_where,
    capacity,
    eps,
    H: tl.constexpr,
    STREAMS: tl.constexpr,
    BH: tl.constexpr,
):
    chain()
    i_r = tl.program_id(0)
    slot, t = tl.load(p_where), tl.load(p_where + 1 + i_r)
    row = tl.load(p_from + i_r)
    o_h = tl.arange(0, BH)
    m_h = o_h < H
    token = tl.load(p_tokens + slot * capacity + t + 1)
    b_e = tl.load(p_embedding + token * H + o_h, mask=m_h, other=0.0).to(tl.float32)
    b_e = b_e / tl.sqrt(tl.sum(b_e * b_e) / H + eps) * tl.load(p_escale + o_h, mask=m_h, other=0.0)
    tl.store(p_e + i_r * H + o_h, b_e, mask=m_h)
    square = 0.0
    p_s = p_hidden + row * STREAMS * H + o_h
    for c in tl.static_range(STREAMS):
        b_s = tl.load(p_s + c * H, mask=m_h, other=0.0)
        square += tl.sum(b_s * b_s)
    rstd = 1.0 / tl.sqrt(square / (STREAMS * H) + eps)
    for c in tl.static_range(STREAMS):
        b_s = tl.load(p_s + c * H, mask=m_h, other=0.0) * tl.load(p_hscale + c * H + o_h, mask=m_h, other=0.0) * rstd
        tl.store(p_h + (i_r * STREAMS + c) * H + o_h, b_s, mask=m_h)


@triton.jit
def _add(p_s, p_e, H: tl.constexpr, STREAMS: tl.constexpr, BH: tl.constexpr):
    chain()
    i_r, i_c = tl.program_id(0), tl.program_id(1)
    o_h = tl.arange(0, BH)
    m_h = o_h < H
    p = p_s + (i_r * STREAMS + i_c) * H + o_h
    tl.store(p, tl.load(p, mask=m_h, other=0.0) + tl.load(p_e + i_r * H + o_h, mask=m_h, other=0.0), mask=m_h)


def fuse(
    hidden: Tensor,
    source: Tensor,
    tokens: Tensor,
    where: Tensor,
    embedding: Tensor,
    embedding_scale: Tensor,
    hidden_scale: Tensor,
    fc_embedding: Tensor,
    fc_hidden: Tensor,
    streams: Tensor,
    work: tuple[Tensor, Tensor, Tensor],
    eps: float,
) -> None:
    """Streams of R <= 4 draft rows: `fc_embedding norm(embedding of the token after the row) + fc_hidden
    norm(hidden)_c`.

    hidden [rows, n, H] fp32, row r takes hidden[source[r]] (int64); tokens [slots, capacity] int64; where: slot and
    the rows' positions; streams [R, n, H] fp32 is written; work = (e [R, H], h [R, n, H], product [R, H]) fp32.
    """
    rows, n, width = streams.shape
    e, h, product = work
    bh = triton.next_power_of_2(width)
    _norms[(rows,)](
        hidden, tokens, embedding, embedding_scale, hidden_scale, e, h, source, where, tokens.stride(0), eps,
        H=width, STREAMS=n, BH=bh, launch_pdl=PDL, num_warps=8,
    )  # fmt: skip
    few_rows(e[:rows], fc_embedding, product[:rows])
    for r in range(rows):
        for c in range(0, n, 4):
            few_rows(h[r, c : c + 4], fc_hidden, streams[r, c : c + 4])
    _add[(rows, n)](streams, product, H=width, STREAMS=n, BH=bh, launch_pdl=PDL, num_warps=4)
