"""One to four rows against rows of weights: the inner loop of every decode product.

A program holds its rows of weights in registers, loaded in chunks of C columns before it waits for its input; every row
of x passes over them. Lanes take four neighbouring columns of weights and of x alike, so x is read as it lies and no
value moves between threads before the sums are complete.
Each row has an accumulator of its own and the same order of additions whatever the number of rows: its result does not
depend on its neighbours. Products that are added are written as `tl.fma`: left to the compiler, some are fused and some
not, depending on the number of rows. Rows are fp32, weights as they are stored, sums fp32.
"""

import os

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Programmatic dependent launch: a kernel's start overlaps the end of the one before it. CAROUSEL_PDL=0 turns it off.
PDL = (
    not INTERPRETED
    and os.environ.get("CAROUSEL_PDL") != "0"
    and torch.cuda.is_available()
    and torch.cuda.get_device_capability() >= (9, 0)
)
_CHAINED = tl.constexpr(PDL)
LANES = 128  # columns that a warp reads at once; also the side of an FP8 scale block


@triton.jit
def chain():
    """Wait until the kernel before this one is complete, then let the next one start.

    Every kernel begins with it; before it, only what no kernel of the step writes may be read, and what the kernel
    before the last one wrote.
    """
    if _CHAINED:
        gdc_wait()
        gdc_launch_dependents()


def chunk(width: int, warps: int, scaled: bool = False) -> int:
    """Columns of a chunk: what the warps of a program read at once. Scaled weights have one scale a chunk and row."""
    if scaled:
        return LANES
    return triton.next_power_of_2(width) if INTERPRETED else LANES * warps


@triton.jit
def columns(C: tl.constexpr):
    """The columns of a chunk, four a lane. (Without the hint a lane would take 16 bytes of weights: other columns than
    of x, which would then pass through shared memory for every row.)"""
    return tl.max_contiguous(tl.arange(0, C), 4)


@triton.jit
def append(items, item):
    """The tuple with one item more."""
    return items + (item,)  # noqa: RUF005


@triton.jit
def load_tile(p_row, o_c, c: tl.constexpr, K: tl.constexpr, C: tl.constexpr):
    """[N, C] chunk c of N rows of K weights; p_row [N, C] points at their first chunk."""
    p = p_row + c * C
    return tl.load(p) if (c + 1) * C <= K else tl.load(p, mask=(o_c < K - c * C)[None, :], other=0.0)


@triton.jit
def load_rows(p_row, o_c, K: tl.constexpr, C: tl.constexpr):
    """All chunks of N rows of K weights, as `load_tile`."""
    chunks = ()
    for c in tl.static_range((K + C - 1) // C):
        chunks = append(chunks, load_tile(p_row, o_c, c, K, C))
    return chunks


@triton.jit
def load_chunk(p_x, o_c, c: tl.constexpr, K: tl.constexpr, C: tl.constexpr):
    """[C] chunk c of the K values at p_x."""
    p = p_x + c * C + o_c
    return tl.load(p) if (c + 1) * C <= K else tl.load(p, mask=o_c < K - c * C, other=0.0)


@triton.jit
def fours(b):
    """[N, C] as four tensors [N, C / 4]: the columns of each lane, one by one."""
    b_0, b_1 = tl.split(tl.reshape(b, [b.shape[0], b.shape[1] // 4, 2, 2]))
    b_00, b_10 = tl.split(b_0)
    b_01, b_11 = tl.split(b_1)
    return b_00, b_01, b_10, b_11


@triton.jit
def dot_fours(b_w, b_x):
    """[N, C / 4]: the sums that a lane can make of weights [N, C] times x [C], so that a chunk's scale costs little."""
    w_0, w_1, w_2, w_3 = fours(b_w.to(tl.float32))
    x_0, x_1, x_2, x_3 = fours(b_x[None, :])
    return tl.fma(w_3, x_3, tl.fma(w_2, x_2, tl.fma(w_1, x_1, w_0 * x_0)))


@triton.jit
def silu(x):
    """x * sigmoid(x)"""
    return x * tl.sigmoid(x)


def tile(rows: int, real: int, interpreted: int) -> int:
    """A tile height: `real` on a device; the interpreter runs programs one by one and wants few of them."""
    return min(interpreted, triton.next_power_of_2(rows)) if INTERPRETED else real


@triton.jit
def when(m, c):
    """The mask m where the scalar c holds, else nothing. (The interpreter broadcasts a scalar i1 to int32.)"""
    return m & ((m.to(tl.int32) * 0 + c.to(tl.int32)) > 0)
