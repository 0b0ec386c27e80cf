"""A linear layer without bias: the definition, and the CPU backend."""

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T`: x [T, in] float32, weight [out, in] float32; returns [T, out]."""
    if x.shape[0] == 1:
        # one row: matrix-vector, 26 us against 50 us for 1048 x 256 on one core
        return torch.mv(weight, x[0])[None]
    return torch.nn.functional.linear(x, weight)
