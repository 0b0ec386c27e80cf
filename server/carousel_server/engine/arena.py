"""Memory for the weights of a CPU model on huge pages, where the kernel gives them.

A decode step reads each matrix once, so the 4 KiB pages of a small model are more than a core's address cache holds.
The map is private: shared memory gets no huge pages by default.
"""

import mmap
from contextlib import suppress

import torch
from torch import Tensor

PAGE, RESERVED, ALIGNED = 2 * 2**20, 64 * 2**20, 64  # bytes; what is reserved and never written takes no memory


class Arena:
    """Hands out matrices one behind the other. They live as long as any of them is used."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def keep(self, source: Tensor) -> Tensor:
        """A contiguous copy."""
        size = source.numel() * source.element_size()
        start = -(-self._used // ALIGNED) * ALIGNED
        if start + size > len(self._block):
            self._block, start = _reserve(max(size, RESERVED)), 0
        self._used = start + size
        return self._block[start : self._used].view(source.dtype).view(source.shape).copy_(source)


def _reserve(size: int) -> Tensor:
    memory = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a platform or a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    first = -whole.data_ptr() % PAGE
    return whole[first : first + size]
