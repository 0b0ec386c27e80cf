"""The norm of a buffer, see `reference.rms_norm`."""

import math

import torch
from torch import Tensor

from carousel_kernels.constant import constant


class RmsNorm:
    """`out = rms_norm(x, scale, eps) * factor`, for x and out of one shape [..., D], any strides."""

    def __init__(self, x: Tensor, out: Tensor, length: Tensor, scale: Tensor, eps: float, factor: float = 1.0) -> None:
        width = x.shape[-1]
        self.x, self.out, self.length = x, out, length  # length [..., 1]
        self.floor = constant(math.sqrt(width * eps))
        self.scale = scale * (factor * math.sqrt(width))

    def __call__(self) -> None:
        """Compute `out`."""
        torch.linalg.vector_norm(self.x, 2, -1, True, out=self.length)
        torch.hypot(self.length, self.floor, out=self.length)
        torch.div(self.x, self.length, out=self.out).mul_(self.scale)
