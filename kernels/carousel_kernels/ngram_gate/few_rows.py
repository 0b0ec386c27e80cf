"""The gate of an n-gram embedding bound to its streams, see `reference`."""

import math

import torch
from torch import Tensor

from carousel_kernels.constant import constant
from carousel_kernels.norm.few_rows import RmsNorm
from carousel_kernels.scratch import Scratch


class Gate:
    """A call computes `out` [T, n, H] from the streams [T, n, H], a key [T, n * H] and a value [T, H]."""

    def __init__(
        self,
        scratch: Scratch,
        streams: Tensor,
        key: Tensor,
        value: Tensor,
        key_scale: Tensor,
        query_scale: Tensor,
        eps: float,
    ) -> None:
        _, n, width = streams.shape
        self.keys, self.queries = scratch("gate.keys", n, width), scratch("gate.queries", n, width)
        length, share = scratch("gate.length", n, 1), 1 / math.sqrt(width)
        self.norms = (
            RmsNorm(key.view(streams.shape), self.keys, length, key_scale, eps, factor=share),
            RmsNorm(streams, self.queries, length, query_scale, eps),
        )
        self.value = value[:, None]
        self.out = scratch("gate.out", n, width)

    def __call__(self) -> None:
        """Compute `out`."""
        for norm in self.norms:
            norm()
        a = self.keys.mul_(self.queries).sum(-1, keepdim=True)
        opened = a.abs().clamp_min_(constant(1e-6)).sqrt_().mul_(a.sign_()).sigmoid_()
        torch.mul(self.value, opened, out=self.out)
