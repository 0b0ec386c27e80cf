"""Which experts serve a token: the definition, and the CPU backend."""

import torch
from torch import Tensor


def route(logits: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The `top` experts of each row with the softmax over all experts, renormalised over the chosen.

    logits [T, E] float32. Returns (weights [T, top] float32 that sum to 1, ids [T, top] int64), best first; of equal
    logits the lower id. The softmax over all E cancels in the renormalisation, so only the chosen logits enter.
    """
    ordered = torch.sort(logits, dim=1, descending=True, stable=True)
    return torch.softmax(ordered.values[:, :top], -1), ordered.indices[:, :top]
