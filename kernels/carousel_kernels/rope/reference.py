"""Rotary positions, half-split (neox): the definition, and the CPU backend."""

import torch
from torch import Tensor


def tables(positions: int, rotary: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of every position, each [positions, rotary / 2] float32.

    Text only: the three axes of the checkpoint's multimodal rotary positions are equal, so plain rope is exact.
    """
    inverse = 1.0 / (theta ** (torch.arange(0, rotary, 2, dtype=torch.float32, device=device) / rotary))
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * inverse
    return angles.cos(), angles.sin()


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first 2r entries of the last dimension in place and return x.

    x [T, heads, d] with d >= 2r; cos, sin [T, r]. Entry i pairs with entry i + r.
    """
    r = cos.shape[-1]
    c, s = cos[:, None], sin[:, None]
    first, second = x[..., :r], x[..., r : 2 * r]
    rotated = first * s
    first.mul_(c).addcmul_(second, s, value=-1)
    second.mul_(c).add_(rotated)
    return x
