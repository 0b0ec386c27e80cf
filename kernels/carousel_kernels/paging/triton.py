"""Many pieces of memory to or from pages in one launch; either side may be registered host memory."""

import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import INTERPRETED

COLUMNS = 8  # of a row of pieces
BLOCK = 65536 if INTERPRETED else 16384  # bytes that a program has in flight
FEW = 2 if INTERPRETED else 64  # programs that keep the bus busy, and leave the device to a step beside them


@triton.jit(do_not_specialize=["slot", "first", "at", "number", "total"])
def _copy(
    p_pieces, p_pages, slot, first, at, number, total, OUT: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):
    o_d = tl.arange(0, BLOCK // 8)
    o_w = tl.arange(0, BLOCK // 4)
    for i in range(tl.program_id(0), total, tl.num_programs(0)):
        i_g = (i // number).to(tl.int64)
        p = p_pieces + (i % number) * COLUMNS
        group = (first + i_g) * tl.load(p + 2)
        count = tl.minimum(tl.load(p + 5), tl.load(p + 6) - group).to(tl.int32)
        if count > 0:
            inside = tl.load(p) + slot * tl.load(p + 1) + group
            paged = tl.load(p_pages + at + tl.load(p + 3) + i_g) + tl.load(p + 4)
            if OUT:
                source, target = inside, paged
            else:
                source, target = paged, inside
            if tl.load(p + 7) == 16:
                p_from = tl.multiple_of(source.to(tl.pointer_type(tl.int64)), 16)
                p_to = tl.multiple_of(target.to(tl.pointer_type(tl.int64)), 16)
                for b in range(tl.cdiv(count, BLOCK)):
                    o = b * (BLOCK // 8) + o_d
                    m = o < count // 16 * 2  # one mask for both halves of 16 bytes
                    tl.store(p_to + o, tl.load(p_from + o, mask=m), mask=m)
            else:
                p_word_from, p_word_to = source.to(tl.pointer_type(tl.int32)), target.to(tl.pointer_type(tl.int32))
                for b in range(tl.cdiv(count, BLOCK)):
                    o = b * (BLOCK // 4) + o_w
                    m = o < count // 4
                    tl.store(p_word_to + o, tl.load(p_word_from + o, mask=m), mask=m)


def copy(pieces: Tensor, pages: Tensor, slot: int, *, out: bool, first: int = 0, groups: int = 1, at: int = 0) -> None:
    """Copy all pieces of the groups first .. first + groups - 1 of a slot, `out` to the pages or from them.

    pieces [number, 8] int64, in bytes: the address in slot 0 and group 0, what a slot and what a group add to it; the
    page of group `first`, counted from pages[at], each further group being one page on, and the place in that page;
    the length; where the slot's rows end, counted from the address; and the unit: 16 where everything is a multiple of
    16, else 4. A piece of length 0 is none. pages [number] int64: addresses.
    """
    number = pieces.shape[0]
    total = number * groups
    _copy[(total if out else min(total, FEW),)](
        pieces, pages, slot, first, at, number, total, OUT=out, COLUMNS=COLUMNS, BLOCK=BLOCK, num_warps=4
    )
