"""Routed and shared experts: the definition, and the CPU backend."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from carousel_kernels.linear.reference import linear


def routed(x: Tensor, weights: Tensor, ids: Tensor, gate_up: Sequence[Tensor], down: Sequence[Tensor]) -> Tensor:
    """`sum over chosen experts e of weight_e * down_e (silu(g) * u)`, `[g; u] = gate_up_e x`.

    x [T, H] float32; weights, ids [T, k] from the router; gate_up[e] [2 * I, H], gate rows first; down[e] [H, I].
    An expert in another floating type is widened when it is used. Returns [T, H].
    """
    out = torch.zeros_like(x)
    flat = ids.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=len(gate_up)).tolist()
    source = order // ids.shape[1]
    scale = weights.flatten()[order]
    at = 0
    for expert, count in enumerate(counts):
        if count:
            pick = source[at : at + count]
            hidden = torch.mm(x[pick], gate_up[expert].to(x.dtype).t())
            inner = hidden.shape[1] // 2
            hidden = silu(hidden[:, :inner]).mul_(hidden[:, inner:]).mul_(scale[at : at + count, None])
            out.index_add_(0, pick, torch.mm(hidden, down[expert].to(x.dtype).t()))
            at += count
    return out


def shared(x: Tensor, gate_up: Tensor, down: Tensor, opening: Tensor) -> Tensor:
    """`sigmoid(opening) * down (silu(g) * u)`, `[g; u] = gate_up x`, the expert that serves every row.

    x [T, H]; gate_up [2 * I, H]; down [H, I]; opening [T, 1], before its sigmoid. Returns [T, H].
    """
    return combine(linear(x, gate_up), down, opening)


def combine(hidden: Tensor, down: Tensor, opening: Tensor) -> Tensor:
    """`shared` with `hidden = gate_up x` [T, 2 * I] given, for callers that merge that product with others."""
    inner = hidden.shape[1] // 2
    gate, up = hidden.split_with_sizes([inner, inner], 1)
    return linear(silu(gate).mul_(up), down).mul_(torch.sigmoid(opening))
