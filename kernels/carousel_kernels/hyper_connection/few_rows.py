"""A gated hyper-connection bound to its streams, see `reference`."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from carousel_kernels.norm.few_rows import RmsNorm
from carousel_kernels.scratch import Scratch


class Mix:
    """A call computes `x` [T, H] from the streams; `inject_` adds a block's output to them."""

    def __init__(self, scratch: Scratch, streams: Tensor, scale: Tensor, down: Tensor, up: Tensor, eps: float) -> None:
        rows, n, width = streams.shape
        rank = up.shape[1]
        self.streams = streams
        self.normed = scratch("mix.normed", n, width)
        self.norm = RmsNorm(streams, self.normed, scratch("mix.length", n, 1), scale, eps, factor=1 / n)
        self.flat = self.normed.view(rows, n * width)
        self.down, self.up = down.t(), up.t()
        self.narrow = scratch("mix.narrow", down.shape[0])
        self.low, self.opening = self.narrow[:, :rank], self.narrow[:, rank:]
        self.inject = self.opening[:, :, None]
        self.gate = scratch("mix.gate", n * width)
        self.gates = self.gate.view(rows, n, width)
        self.x = scratch("mix.x", width)

    def __call__(self) -> None:
        """Compute `x`, and how strongly the block's output enters each stream."""
        self.norm()
        torch.mm(self.flat, self.down, out=self.narrow)
        silu(self.low, inplace=True)
        self.opening.sigmoid_()
        torch.mm(self.low, self.up, out=self.gate).sigmoid_()
        torch.sum(self.gates.mul_(self.normed), 1, out=self.x)

    def inject_(self, y: Tensor) -> None:
        """y [T, 1, H]"""
        self.streams.addcmul_(self.inject, y, value=2.0)
