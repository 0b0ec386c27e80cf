"""Small constants as tensors."""

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=1024)
def constant(value: float) -> Tensor:
    """`value` as a 0-dimensional float32 tensor on the CPU, which operations on any device take as a number.

    On one CPU core `x.mul_(tensor)` takes 0.7 us and `x.mul_(number)` 2.3: a number is first made a tensor of doubles.
    """
    return torch.tensor(value, dtype=torch.float32)
