"""Buffers for a fixed number of rows, and what operators that are bound to them share.

On a CPU a decode step of a small model is bound by the number of torch calls, and a view or a new tensor costs as much
as a small operation. So the `few_rows` form of an operator is an object: made once from its weights and the buffers
that it reads, with every view it needs; a call only computes. What it means is in the operator's `reference.py`.
"""

import torch
from torch import Tensor


class Scratch:
    """Float buffers by name and shape. Layers run one after the other, so all of them use the same ones."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._held: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """[rows, *shape]"""
        key = (name, shape)
        if key not in self._held:
            self._held[key] = torch.zeros(self.rows, *shape)
        return self._held[key]
