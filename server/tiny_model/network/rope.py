"""Rotary positions."""

import torch


def rope(x, cs):
    """x [..., T, d] (heads before T), cs = (cos, sin) [B, 1.., T, r/2]; rotates the first r dims, half split."""
    c, s = cs
    h = c.shape[-1]
    a, b, rest = x[..., :h], x[..., h : 2 * h], x[..., 2 * h :]
    return torch.cat([a * c - b * s, b * c + a * s, rest], -1)
