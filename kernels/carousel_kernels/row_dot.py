"""Up to four rows against one tile of weights: the inner loop of every decode product.

Each row has an accumulator of its own and the same order of additions whatever the number of rows, so that a row's
result does not depend on its neighbours. Rows are fp32, weights as they are stored, sums fp32.
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


@triton.jit
def chain():
    """Wait until the kernel before this one is complete, then let the next one start.

    Every kernel begins with it; before it, only what no kernel of the step writes may be read, and what the kernel
    before the last one wrote.
    """
    if _CHAINED:
        gdc_wait()
        gdc_launch_dependents()


def halves(width: int) -> tuple[int, int]:
    """Two powers of two that cover `width` columns, the first within it: a program loads a whole row as two tiles.

    All loads of a program are then in flight at once, and before `chain`, so that they overlap the kernel before.
    """
    first = 1 << (width.bit_length() - 1)
    return first, max(1, triton.next_power_of_2(width - first)) if width > first else 1


@triton.jit
def dot_row(b_1, b_2, p_x, o_1, o_2, m_2):
    """[N] sums of one row times weights given as tiles of its first and its last columns, fp32."""
    b_x = tl.load(p_x + o_1)
    b_z = tl.load(p_x + o_2, mask=m_2, other=0.0)
    return tl.sum(b_1.to(tl.float32) * b_x[None, :], 1) + tl.sum(b_2.to(tl.float32) * b_z[None, :], 1)


@triton.jit
def split_rows(p_x, stride_x, o_k, m_k, R: tl.constexpr):
    """[16, K] bf16: four rows as three bf16 parts each, which together hold an fp32 value; row i is part i // 4 of
    row i % 4.

    So one tensor-core product with M = 16 gives up to four rows an fp32-grade result; a row's result depends on itself.
    """
    o_i = tl.arange(0, 16)
    m_i = (o_i % 4 < R) & (o_i < 12)
    b_x = tl.load(p_x + (o_i % 4)[:, None] * stride_x + o_k[None, :], mask=m_i[:, None] & m_k[None, :], other=0.0)
    high = b_x.to(tl.bfloat16)
    rest = b_x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    part = (o_i // 4)[:, None]
    return tl.where(part == 0, high, tl.where(part == 1, middle, low))


@triton.jit
def join_rows(acc, BN: tl.constexpr):
    """[4, N] from the [16, N] product of `split_rows`: the parts of each row added, smallest first."""
    parts = tl.reshape(acc, [4, 4, BN])
    o_p = tl.arange(0, 4)[:, None, None]
    high = tl.sum(tl.where(o_p == 0, parts, 0.0), 0)
    middle = tl.sum(tl.where(o_p == 1, parts, 0.0), 0)
    return high + (middle + tl.sum(tl.where(o_p == 2, parts, 0.0), 0))


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
