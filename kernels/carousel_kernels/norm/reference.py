"""Root-mean-square norms: the definition, and the CPU backend."""

import math

import torch
from torch import Tensor

from carousel_kernels.constant import constant


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * scale`, statistics over the last dimension.

    x [..., D] float32; scale [D], or [n, D] for n streams with one statistic each. The zero-centred norms of the
    checkpoint become this one when 1 is added to their weight at loading. Returns the shape of x.
    """
    width = x.shape[-1]
    # hypot(|x|, sqrt(D eps)) = sqrt(sum(x^2) + D eps), in fewer operations than the textbook form
    norm = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), constant(math.sqrt(width * eps)))
    return (x / norm.mul_(constant(1 / math.sqrt(width)))).mul_(scale)


def gated_rms_norm(x: Tensor, scale: Tensor, gate: Tensor, eps: float, activation: str) -> Tensor:
    """`rms_norm(x) * activation(gate)`: the norm first, then the gate.

    x [T, h, d]; scale [d]; gate [T, h * d] before its activation, which is "sigmoid" or "silu". Returns [T, h * d].
    """
    opened = torch.sigmoid(gate) if activation == "sigmoid" else torch.nn.functional.silu(gate)
    return opened.mul_(rms_norm(x, scale, eps).view(gate.shape))
