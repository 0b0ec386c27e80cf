"""Gated hyper-connections, the residual of n streams: the definition, and the CPU backend."""

import torch
from torch import Tensor

from carousel_kernels.constant import constant
from carousel_kernels.linear.reference import linear
from carousel_kernels.norm.reference import rms_norm


def mix(streams: Tensor, scale: Tensor, down: Tensor, up: Tensor, eps: float) -> tuple[Tensor, Tensor | None]:
    """The input of a block, and how strongly its output goes back to each stream.

        N = rms_norm(streams) per stream                      [T, n, H]
        g = sigmoid(up @ silu(down[:r] @ N / n))              [T, n, H]
        x = mean over streams of g * N                        [T, H]
        inject = 2 * sigmoid(down[r:] @ N / n)                [T, n]

    streams [T, n, H]; scale [n, H]; down [r, n * H], or [r + n, n * H] with the n inject rows below;
    up [n * H, r]. Division by n is part of the definition, not of the weights.
    Returns (x, inject); inject is None without inject rows. Streams are not changed.
    """
    rows, n, width = streams.shape
    rank, share = up.shape[1], constant(1 / n)
    normed = rms_norm(streams, scale, eps)
    low = linear(normed.view(rows, n * width), down).mul_(share)
    inject: Tensor | None = None
    if down.shape[0] > rank:
        low, inject = low.split_with_sizes([rank, n], 1)
        inject = torch.sigmoid(inject).mul_(constant(2.0))
    gate = linear(torch.nn.functional.silu(low), up).sigmoid_()
    return gate.view(rows, n, width).mul_(normed).sum(1).mul_(share), inject


def inject_(streams: Tensor, y: Tensor, inject: Tensor) -> Tensor:
    """`streams[:, c] += inject[:, c] * y` in place, on the streams before their norm; returns them.

    streams [T, n, H]; y [T, H]; inject [T, n].
    """
    return streams.addcmul_(inject[:, :, None], y[:, None])
