"""Many pieces of memory to or from pages in one launch; either side may be registered host memory."""

import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import INTERPRETED

TILE = 65536 if INTERPRETED else 16384  # bytes a program copies at most
COLUMNS = 8  # of a row of pieces


@triton.jit(do_not_specialize=["slot", "first", "at"])
def _copy(p_pieces, p_pages, slot, first, at, OUT: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr):
    i_b, i_g = tl.program_id(1).to(tl.int64) * TILE, tl.program_id(2).to(tl.int64)
    p = p_pieces + tl.program_id(0) * COLUMNS
    group = (first + i_g) * tl.load(p + 2)
    count = tl.minimum(tl.load(p + 5), tl.load(p + 6) - group) - i_b
    if count > 0:
        inside = tl.load(p) + slot * tl.load(p + 1) + group + i_b
        paged = tl.load(p_pages + at + tl.load(p + 3) + i_g) + tl.load(p + 4) + i_b
        if OUT:
            source, target = inside, paged
        else:
            source, target = paged, inside
        if tl.load(p + 7) == 16:
            o_d = tl.arange(0, TILE // 8)
            p_from = tl.multiple_of(source, 16).to(tl.pointer_type(tl.int64))
            p_to = tl.multiple_of(target, 16).to(tl.pointer_type(tl.int64))
            m_d = o_d < count // 16 * 2  # the mask is the same for both halves of 16 bytes
            tl.store(p_to + o_d, tl.load(p_from + o_d, mask=m_d), mask=m_d)
        else:
            o_w = tl.arange(0, TILE // 4)
            p_word_from, p_word_to = source.to(tl.pointer_type(tl.int32)), target.to(tl.pointer_type(tl.int32))
            m_w = o_w < count // 4
            tl.store(p_word_to + o_w, tl.load(p_word_from + o_w, mask=m_w), mask=m_w)


def copy(
    pieces: Tensor, pages: Tensor, slot: int, *, first: int = 0, groups: int = 1, at: int = 0, longest: int, out: bool
) -> None:
    """Copy all pieces of the groups first .. first + groups - 1 of a slot, `out` to the pages or from them.

    pieces [number, 8] int64, in bytes: the address in slot 0 and group 0, what a slot and what a group add to it; the
    page of group `first`, counted from pages[at], each further group being one page on, and the place in that page;
    the length, at most `longest`; where the slot's rows end, counted from the address; and the unit: 16 where
    everything is a multiple of 16, else 4. A piece of length 0 is none. pages [number] int64: addresses.
    """
    tile = min(TILE, triton.next_power_of_2(longest))
    grid = (pieces.shape[0], triton.cdiv(longest, tile), groups)
    _copy[grid](pieces, pages, slot, first, at, OUT=out, COLUMNS=COLUMNS, TILE=tile, num_warps=4)
