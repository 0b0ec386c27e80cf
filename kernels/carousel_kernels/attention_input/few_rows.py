"""Queries and keys of a few rows before attention, see `reference`."""

import torch
from torch import Tensor

from carousel_kernels.norm.few_rows import RmsNorm
from carousel_kernels.scratch import Scratch


class Turned:
    """A call computes `q` [T, h, d] and `k` [T, h_kv, d], normed and rotated, from the projected ones."""

    def __init__(
        self, scratch: Scratch, q: Tensor, k: Tensor, q_scale: Tensor, k_scale: Tensor, rotary: int, eps: float
    ) -> None:
        heads, both, r = q.shape[1], q.shape[1] + k.shape[1], rotary // 2
        whole, length = scratch("turned", both, q.shape[2]), scratch("turned.length", both, 1)
        self.q, self.k = whole[:, :heads], whole[:, heads:]
        self.norms = (
            RmsNorm(q, self.q, length[:, :heads], q_scale, eps),
            RmsNorm(k, self.k, length[:, heads:], k_scale, eps),
        )
        self.first, self.second = whole[..., :r], whole[..., r : 2 * r]
        self.crossed = scratch("turned.crossed", both, r)

    def __call__(self, cos: Tensor, sin: Tensor) -> None:
        """cos, sin [T, 1, r] of the rows' positions."""
        for norm in self.norms:
            norm()
        torch.mul(self.first, sin, out=self.crossed)
        self.first.mul_(cos).addcmul_(self.second, sin, value=-1)
        self.second.mul_(cos).add_(self.crossed)
