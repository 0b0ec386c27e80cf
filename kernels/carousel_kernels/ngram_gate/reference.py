"""How strongly an n-gram embedding enters each stream: the definition, and the CPU backend."""

import math

import torch
from torch import Tensor

from carousel_kernels.norm.reference import rms_norm


def gate(streams: Tensor, key: Tensor, value: Tensor, key_scale: Tensor, query_scale: Tensor, eps: float) -> Tensor:
    """`sigmoid(sign(a) sqrt(max(|a|, 1e-6))) * value`, `a = rms_norm(key) . rms_norm(streams) / sqrt(H)` per stream.

    streams [T, n, H]; key [T, n * H]; value [T, H]; key_scale, query_scale [n, H]. Returns [T, n, H].
    """
    keys = rms_norm(key.view(streams.shape), key_scale, eps)
    a = (keys * rms_norm(streams, query_scale, eps)).sum(-1, keepdim=True).mul_(1 / math.sqrt(streams.shape[-1]))
    opened = torch.sigmoid(a.abs().clamp_min_(1e-6).sqrt_().mul_(a.sign()))
    return opened * value[:, None]
