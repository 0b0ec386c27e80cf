"""Attention of a few rows bound to their queries, see `reference.attention`."""

import torch
from torch import Tensor

from carousel_kernels.constant import constant
from carousel_kernels.scratch import Scratch


class Attention:
    """`dense` or `sparse` computes `out` [T, h * d]; the cache has the keys of the rows already."""

    def __init__(self, scratch: Scratch, q: Tensor, gate: Tensor, kv_heads: int) -> None:
        rows, heads, width = q.shape
        shape = (rows, kv_heads, heads // kv_heads, width)
        self.q, self.gate = q.view(shape).transpose(0, 1), gate.view(shape)
        self.grouped = torch.empty(kv_heads, rows, heads // kv_heads, width)
        self.flat = self.grouped.view(kv_heads, -1, width)
        self.scale = constant(width**-0.5)
        self.later = torch.full((rows, rows), -torch.inf).triu_(1)[:, None]  # [T, 1, T]
        self.mixed = torch.empty_like(self.grouped)
        self.mixed_flat, self.by_row = self.mixed.view(self.flat.shape), self.mixed.transpose(0, 1)
        self.opened = scratch("attention.opened", *shape[1:])
        self.out = self.opened.view(rows, heads * width)

    def dense(self, keys: Tensor, values: Tensor, start: int) -> None:
        """Over all positions; keys, values [h_kv, capacity, d]."""
        rows = self.later.shape[0]
        end = start + rows
        torch.mul(self.q, self.scale, out=self.grouped)
        scores = torch.bmm(self.flat, keys[:, :end].mT)
        if rows > 1:
            scores.view(len(scores), rows, -1, end)[..., start:].add_(self.later)
        torch.bmm(torch.softmax(scores, -1), values[:, :end], out=self.mixed_flat)
        torch.sigmoid(self.gate, out=self.opened).mul_(self.by_row)

    def sparse(self, keys: Tensor, values: Tensor, start: int, index: Tensor, ratio: int, top: int) -> None:
        """Over the `top` best blocks of each row and its open tail; index [T, blocks], the indexer's scores.

        Which blocks are the best is `block_select.reference`; their order does not matter here.
        """
        torch.mul(self.q, self.scale, out=self.grouped)
        within = torch.arange(ratio)
        for t, scores in enumerate(index.unbind(0)):
            end = start + t + 1
            seen = end // ratio
            best = torch.sort(scores[:seen], descending=True, stable=True).indices[:top]
            at = (best[:, None] * ratio + within).view(-1)
            if end > seen * ratio:
                at = torch.cat([at, torch.arange(seen * ratio, end)])
            row = torch.bmm(self.grouped[:, t], keys.index_select(1, at).mT)
            self.mixed[:, t] = torch.bmm(torch.softmax(row, -1), values.index_select(1, at))
        torch.sigmoid(self.gate, out=self.opened).mul_(self.by_row)
