"""Index scores on the GPU, only for queries that see more blocks than they may keep."""

import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import PDL, chain, tile


@triton.jit
def _scores(
    p_iq,
    p_ikeys,
    p_scores,
    p_where,
    BLOCKS,
    stride_scores,
    TOP: tl.constexpr,
    RATIO: tl.constexpr,
    IH: tl.constexpr,
    DI: tl.constexpr,
    BB: tl.constexpr,
    BI: tl.constexpr,
):
    chain()
    i_r, i_b = tl.program_id(0), tl.program_id(1)
    slot, t = tl.load(p_where), tl.load(p_where + 1 + i_r)
    seen = (t + 1) // RATIO
    if (seen > TOP) & (i_b * BB < seen):
        o_b, o_i = i_b * BB + tl.arange(0, BB), tl.arange(0, BI)
        m_b, m_i = o_b < seen, o_i < DI
        p_k = p_ikeys + (slot * BLOCKS + o_b)[:, None] * DI + o_i[None, :]
        b_k = tl.load(p_k, mask=m_b[:, None] & m_i[None, :], other=0.0).to(tl.float32)
        b_s = tl.zeros([BB], tl.float32)
        for h in tl.static_range(IH):
            b_q = tl.load(p_iq + (i_r.to(tl.int64) * IH + h) * DI + o_i, mask=m_i, other=0.0)
            b_s += tl.maximum(tl.sum(b_k * b_q[None, :], 1), 0.0)
        tl.store(p_scores + i_r.to(tl.int64) * stride_scores + o_b, b_s / tl.sqrt(DI * 1.0), mask=m_b)


def scores(index_q: Tensor, index_keys: Tensor, out: Tensor, where: Tensor, *, top: int, ratio: int) -> None:
    """`sum over heads of relu(q_h . key_b) / sqrt(d_i)` of the blocks that each row sees, if it sees more than `top`.

    index_q [T, h_i, d_i] fp32, normed and turned; index_keys [slots, blocks, d_i]; out [T, >= blocks] fp32, other
    entries stay as they are; where[0] the slot, where[1:] the rows' positions.
    """
    rows, heads, width = index_q.shape
    blocks = index_keys.shape[1]
    bb = tile(blocks, 64, 1024)
    _scores[(rows, triton.cdiv(blocks, bb))](
        index_q, index_keys, out, where, blocks, out.stride(0),
        TOP=top, RATIO=ratio, IH=heads, DI=width, BB=bb, BI=triton.next_power_of_2(width), launch_pdl=PDL, num_warps=4,
    )  # fmt: skip
