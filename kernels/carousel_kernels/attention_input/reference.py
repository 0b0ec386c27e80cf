"""Queries, keys and values before attention, and their cache: the definition, and the CPU backend."""

from torch import Tensor

from carousel_kernels.norm.reference import rms_norm
from carousel_kernels.rope.reference import rotate_


def append(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: Tensor,
    cos: Tensor,
    sin: Tensor,
    start: int,
    eps: float,
) -> None:
    """Norm and rotate the keys of the rows start, start + 1, ... and write both into the cache.

    k, v [T, h_kv * d] as projected; keys, values [h_kv, capacity, d], written in place; scale [d];
    cos, sin [T, r] of the rows' positions. Values are cached as they are.
    """
    rows = k.shape[0]
    heads, _, width = keys.shape
    rotated = rotate_(rms_norm(k.view(rows, heads, width), scale, eps), cos, sin)
    keys[:, start : start + rows] = rotated.transpose(0, 1)
    values[:, start : start + rows] = v.view(rows, heads, width).transpose(0, 1)


def query(q: Tensor, scale: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Norm and rotate queries: q [T, h, d] as projected (any strides), scale [d], cos and sin [T, r]; [T, h, d]."""
    return rotate_(rms_norm(q, scale, eps), cos, sin)
