"""The argmax of a few rows of logits on the GPU. The logits are a product as any other: `linear.few_rows`."""

import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import PDL, chain, tile


@triton.jit
def _best(p_x, p_value, p_id, V, valid, stride, tiles, BV: tl.constexpr):
    chain()
    i_v, i_r = tl.program_id(0), tl.program_id(1)
    o_v = i_v * BV + tl.arange(0, BV)
    m_v = o_v < valid
    b_x = tl.load(p_x + i_r.to(tl.int64) * stride + o_v, mask=m_v, other=-float("inf"))
    faulty = tl.max((b_x != b_x).to(tl.int32))
    value = tl.max(b_x)
    first = tl.min(tl.where((b_x == value) & m_v, o_v, V))
    # a NaN anywhere is the row's result: id -1, greater than every value
    tl.store(p_value + i_r * tiles + i_v, tl.where(faulty > 0, float("inf"), value))
    tl.store(p_id + i_r * tiles + i_v, tl.where(faulty > 0, -1, first))


@triton.jit
def _finish(p_value, p_id, p_out, tiles, stride_out, V, BT: tl.constexpr):
    chain()
    i_r = tl.program_id(0)
    best = -float("inf")
    chosen = V
    for b in range(0, tiles, BT):
        o_t = b + tl.arange(0, BT)
        b_x = tl.load(p_value + i_r * tiles + o_t, mask=o_t < tiles, other=-float("inf"))
        b_i = tl.load(p_id + i_r * tiles + o_t, mask=o_t < tiles, other=V)
        value = tl.max(b_x)
        first = tl.min(tl.where(b_x == value, b_i, V))
        chosen = tl.where(value > best, first, tl.where(value == best, tl.minimum(chosen, first), chosen))
        best = tl.maximum(best, value)
    tl.store(p_out + i_r * stride_out, chosen.to(tl.int64))


def tiles(vocab: int) -> int:
    """Partial results of `best` for each row."""
    return -(-vocab // tile(vocab, 1024, 65536))


def best(scores: Tensor, valid: int, out: Tensor, work: tuple[Tensor, Tensor]) -> None:
    """The highest of the first `valid` logits of each row, the lowest id among equals; -1 if any of them is NaN.

    scores [R, V] fp32; out [R] int64 (any stride); work = (values fp32, ids int32), each [R, tiles(V)].
    """
    rows, vocab = scores.shape
    value, ids = work
    count = tiles(vocab)
    _best[(count, rows)](
        scores,
        value,
        ids,
        vocab,
        valid,
        scores.stride(0),
        count,
        BV=tile(vocab, 1024, 65536),
        launch_pdl=PDL,
        num_warps=4,
    )
    bt = min(1024, triton.next_power_of_2(count))
    _finish[(rows,)](value, ids, out, count, out.stride(0), vocab, BT=bt, launch_pdl=PDL, num_warps=4)
