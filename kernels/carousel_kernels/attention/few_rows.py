"""Dense attention of a few rows, see `reference.attention`."""

import torch
from torch import Tensor

from carousel_kernels.constant import constant
from carousel_kernels.scratch import Scratch


class Dense:
    """A call computes `out` [T, h * d] from the queries and the cache, in which the rows' own keys are already."""

    def __init__(self, scratch: Scratch, q: Tensor, gate: Tensor, kv_heads: int) -> None:
        rows, heads, width = q.shape
        shape = (rows, kv_heads, heads // kv_heads, width)
        self.q, self.gate = q.view(shape).transpose(0, 1), gate.view(shape)
        self.grouped = torch.empty(kv_heads, rows, heads // kv_heads, width)
        self.flat = self.grouped.view(kv_heads, -1, width)
        self.scale = constant(width**-0.5)
        self.later = torch.full((rows, rows), -torch.inf).triu_(1)[:, None]  # [T, 1, T]
        self.mixed = torch.empty_like(self.flat)
        self.by_row = self.mixed.view(self.grouped.shape).transpose(0, 1)
        self.opened = scratch("attention.opened", *shape[1:])
        self.out = self.opened.view(rows, heads * width)

    def __call__(self, keys: Tensor, values: Tensor, start: int) -> None:
        """keys, values [h_kv, capacity, d]"""
        rows = self.later.shape[0]
        end = start + rows
        torch.mul(self.q, self.scale, out=self.grouped)
        scores = torch.bmm(self.flat, keys[:, :end].mT)
        if rows > 1:
            scores.view(len(scores), rows, -1, end)[..., start:].add_(self.later)
        torch.bmm(torch.softmax(scores, -1), values[:, :end], out=self.mixed)
        torch.sigmoid(self.gate, out=self.opened).mul_(self.by_row)
