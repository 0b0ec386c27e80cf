"""The best blocks of each query on the GPU: a search for the cut by bisection of the float's bits, then compaction."""

import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import PDL, chain


@triton.jit
def _select(
    p_scores,
    p_blocks,
    p_where,
    stride_scores,
    TOP: tl.constexpr,
    RATIO: tl.constexpr,
    BB: tl.constexpr,
):
    chain()
    i_r = tl.program_id(0).to(tl.int64)
    t = tl.load(p_where + 1 + i_r)
    seen = ((t + 1) // RATIO).to(tl.int32)
    if seen > TOP:
        p_s = p_scores + i_r * stride_scores
        o_b = tl.arange(0, BB)
        cut = 0  # the highest pattern that at least TOP scores reach; scores are not negative, so bits sort as values
        for bit in range(30, -1, -1):
            trial = cut | (1 << bit)
            count = 0
            for b in range(0, seen, BB):
                b_s = tl.load(p_s + b + o_b, mask=b + o_b < seen, other=-1.0).to(tl.int32, bitcast=True)
                count += tl.sum(((b_s >= trial) & (b + o_b < seen)).to(tl.int32))
            cut = tl.where(count >= TOP, trial, cut)
        above = 0
        for b in range(0, seen, BB):
            b_s = tl.load(p_s + b + o_b, mask=b + o_b < seen, other=-1.0).to(tl.int32, bitcast=True)
            above += tl.sum(((b_s > cut) & (b + o_b < seen)).to(tl.int32))
        spare = TOP - above  # of those that equal the cut, the first ones
        equal_before, taken_before = 0, 0
        for b in range(0, seen, BB):
            m_b = b + o_b < seen
            b_s = tl.load(p_s + b + o_b, mask=m_b, other=-1.0).to(tl.int32, bitcast=True)
            equal = ((b_s == cut) & m_b).to(tl.int32)
            rank = equal_before + tl.cumsum(equal, 0) - equal
            taken = (((b_s > cut) & m_b) | ((equal == 1) & (rank < spare))).to(tl.int32)
            at = taken_before + tl.cumsum(taken, 0) - taken
            tl.store(p_blocks + i_r * TOP + at, b + o_b, mask=taken == 1)
            equal_before += tl.sum(equal)
            taken_before += tl.sum(taken)


def select(scores: Tensor, out: Tensor, where: Tensor, *, ratio: int) -> None:
    """The `top` best blocks of each row that sees more than `top`, ascending; the lowest index among equal scores.

    scores [T, >= blocks] fp32, none negative; out [T, top] int32, rows that see fewer stay as they are;
    where[1:] the rows' positions.
    """
    rows, top = out.shape
    bb = min(4096, triton.next_power_of_2(scores.shape[1]))
    _select[(rows,)](scores, out, where, scores.stride(0), TOP=top, RATIO=ratio, BB=bb, launch_pdl=PDL, num_warps=8)
