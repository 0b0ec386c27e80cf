"""Log probabilities of a few rows on the GPU: of the chosen ids, and of the best ones; `reference.logprobs`."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import PDL, chain, tile, when

MOST = 20  # best ids of a row
_MOST, _LEAST = tl.constexpr(MOST), tl.constexpr(-(2**63))


@dataclass(frozen=True)
class Best:
    """Device buffers for R rows."""

    highest: Tensor  # [R, tiles] float64: of each tile of a row
    sums: Tensor  # [R, tiles] float64: of exp(x - highest)
    ranked: Tensor  # [R, tiles, MOST] int64: the best of each tile, a logit's ordered pattern before its id
    out: Tensor  # [R, 1 + 2 * MOST] float64: of the chosen id; then the best ids; then theirs

    @classmethod
    def empty(cls, rows: int, vocab: int, device: torch.device, width: int | None = None) -> "Best":
        """Buffers for logits of `vocab` ids; `width` of a tile is for tests."""
        tiles = -(-vocab // (width or tile(vocab, 1024, 65536)))

        def make(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        ranked = make(rows, tiles, MOST, dtype=torch.int64)
        return cls(make(rows, tiles), make(rows, tiles), ranked, make(rows, 1 + 2 * MOST))


@triton.jit(do_not_specialize=["top"])
def _rank(p_x, p_highest, p_sums, p_ranked, stride, valid, tiles, top, BV: tl.constexpr):
    chain()
    i_v, i_r = tl.program_id(0), tl.program_id(1)
    o_v = i_v * BV + tl.arange(0, BV)
    m_v = o_v < valid
    b_x = tl.load(p_x + i_r.to(tl.int64) * stride + o_v, mask=m_v, other=-float("inf"))
    highest = tl.max(b_x)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    at = i_r * tiles + i_v
    tl.store(p_highest + at, highest.to(tl.float64))
    tl.store(p_sums + at, tl.sum(tl.exp(b_x.to(tl.float64) - base.to(tl.float64))))
    bits = tl.where(b_x == 0.0, 0.0, b_x).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    b_rank = tl.where(m_v, (key << 32) + (0x7FFFFFFF - o_v), _LEAST)  # the lowest id is the highest among equals
    for i in range(top):
        first = tl.max(b_rank)
        tl.store(p_ranked + at * _MOST + i, first)
        b_rank = tl.where(b_rank == first, _LEAST, b_rank)


@triton.jit(do_not_specialize=["top"])
def _finish(
    p_x, p_chosen, p_highest, p_sums, p_ranked, p_out, stride, tiles, top, BT: tl.constexpr
):  # fmt: skip
    chain()
    i_r = tl.program_id(0)
    o_t = tl.arange(0, BT)
    m_t = o_t < tiles
    b_highest = tl.load(p_highest + i_r * tiles + o_t, mask=m_t, other=-float("inf"))
    highest = tl.max(b_highest)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    whole = tl.sum(tl.load(p_sums + i_r * tiles + o_t, mask=m_t, other=0.0) * tl.exp(b_highest - base))
    whole = base + tl.log(whole)
    chosen = tl.maximum(tl.load(p_chosen + i_r), 0)
    p_out += i_r * (1 + 2 * _MOST)
    tl.store(p_out, tl.load(p_x + i_r.to(tl.int64) * stride + chosen).to(tl.float64) - whole)
    p_ranked += (i_r * tiles + o_t) * _MOST
    b_rank = tl.load(p_ranked, mask=when(m_t, top > 0), other=_LEAST)
    b_taken = tl.zeros([BT], tl.int32)
    for i in range(top):
        first = tl.max(b_rank)
        key = (first >> 32).to(tl.int32)
        x = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)
        tl.store(p_out + 1 + i, (0x7FFFFFFF - (first & 0xFFFFFFFF)).to(tl.float64))
        tl.store(p_out + 1 + _MOST + i, x.to(tl.float64) - whole)
        won = b_rank == first
        b_taken += won.to(tl.int32)
        b_next = tl.load(p_ranked + b_taken, mask=m_t & won & (b_taken < top), other=_LEAST)
        b_rank = tl.where(won, b_next, b_rank)


def log_probabilities(logits: Tensor, chosen: Tensor, best: Best, *, valid: int, top: int) -> None:
    """Into `best.out`: the log-softmax over the first `valid` logits, of each row's chosen id and of its `top` best.

    logits [R, V] fp32; chosen [R] int64, one that is no token stands for id 0; top <= min(MOST, valid).
    """
    rows, vocab = logits.shape
    tiles = best.highest.shape[1]
    bv = triton.next_power_of_2(triton.cdiv(vocab, tiles))
    _rank[(tiles, rows)](
        logits, best.highest, best.sums, best.ranked, logits.stride(0), valid, tiles, top,
        BV=bv, launch_pdl=PDL, num_warps=4,
    )  # fmt: skip
    _finish[(rows,)](
        logits, chosen, best.highest, best.sums, best.ranked, best.out, logits.stride(0), tiles, top,
        BT=triton.next_power_of_2(tiles), launch_pdl=PDL, num_warps=1,
    )  # fmt: skip
