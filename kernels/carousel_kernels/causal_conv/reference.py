"""Depthwise causal convolution with a ring of earlier rows: the definition, and the CPU backend."""

import torch
from torch import Tensor


def causal_conv(x: Tensor, ring: Tensor, taps: Tensor, start: int, dilation: int) -> Tensor:
    """`silu(sum over j of taps[j] * x at position p - (K - 1 - j) * dilation)` for rows at start, start + 1, ...

    x [T, C]; taps [K, C], oldest first; ring [W, C] holds the row of position p at p % W and is updated in place.
    Rows before position 0 read as zero: a new sequence needs a zeroed ring. W >= (K - 1) * dilation + 1; with W larger
    by d, the last d rows can be taken back by feeding the next rows at an earlier start. Returns [T, C].
    """
    rows, window = x.shape[0], ring.shape[0]
    reach = (taps.shape[0] - 1) * dilation
    seen = torch.cat([ring.index_select(0, _slots(start - reach, start, window, ring.device)), x])
    y = seen[:rows] * taps[0]
    for j in range(1, taps.shape[0]):
        y.addcmul_(seen[j * dilation : j * dilation + rows], taps[j])
    kept = min(rows, window)
    ring[_slots(start + rows - kept, start + rows, window, ring.device)] = x[rows - kept :]
    return torch.nn.functional.silu(y)


def _slots(first: int, end: int, window: int, device: torch.device) -> Tensor:
    return torch.arange(first, end, device=device).remainder_(window)
