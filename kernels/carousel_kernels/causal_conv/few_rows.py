"""The convolution of a few rows, see `reference.causal_conv`."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import silu

from carousel_kernels.scratch import Scratch


class CausalConv:
    """A call computes `out` [T, C] from x [T, C]; the ring needs a window of (K - 1) * dilation + T rows."""

    def __init__(self, scratch: Scratch, x: Tensor, taps: Tensor, dilation: int) -> None:
        rows, channels = x.shape
        self.count, self.taps, self.dilation = rows, taps, dilation
        self.rows = x.unbind(0)
        self.seen = scratch("conv.seen", taps.shape[0], channels)
        self.flat = self.seen.view(-1, channels)
        self.out = scratch("conv.out", channels)

    def __call__(self, ring: Tensor, at: Sequence[Tensor], start: int) -> None:
        """ring [W, C], `at` its rows one by one."""
        window = len(at)
        for i, row in enumerate(self.rows):
            at[(start + i) % window].copy_(row)
        index = _windows(start % window, window, self.count, self.taps.shape[0], self.dilation)
        torch.index_select(ring, 0, index, out=self.flat)
        torch.sum(self.seen.mul_(self.taps), 1, out=self.out)
        silu(self.out, inplace=True)


@lru_cache(maxsize=1024)
def _windows(slot: int, window: int, rows: int, taps: int, dilation: int) -> Tensor:
    """Where the rows under each tap of each row are, [rows * taps]."""
    return torch.tensor([(slot + i - (taps - 1 - j) * dilation) % window for i in range(rows) for j in range(taps)])
