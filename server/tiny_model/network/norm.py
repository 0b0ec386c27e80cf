"""Norms."""

import torch
from torch import nn


class Z(nn.Module):
    """Zero-centred RMSNorm, optionally grouped."""

    def __init__(s, n, group=None):
        super().__init__()
        s.weight = nn.Parameter(torch.zeros(n))
        s.group = group

    def forward(s, x):
        x = x.float()
        y = x.unflatten(-1, (-1, s.group)) if s.group else x
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y.flatten(-2) if s.group else y) * (1.0 + s.weight.float())


class GNorm(nn.Module):
    def __init__(s, n):
        super().__init__()
        s.weight = nn.Parameter(torch.ones(n))
