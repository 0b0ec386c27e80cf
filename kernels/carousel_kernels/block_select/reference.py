"""Which blocks a query attends to: the definition, and the CPU backend."""

import torch
from torch import Tensor


def select(scores: Tensor, visible: Tensor, top: int) -> Tensor:
    """The `top` best blocks of each query, ascending.

    Tie rule: the highest score first, then the lowest block index. (The relu of the scores makes exact zeros, so a cut
    among equal scores does happen; implementations that use a plain top-k disagree there.)

    scores [T, B] float32; visible [T] int64: query t sees blocks 0 .. visible[t] - 1.
    Returns [T, min(top, B)] int64; where a query sees fewer than `top` blocks, the rest of its row is B.
    """
    blocks = scores.shape[1]
    hidden = torch.arange(blocks, device=scores.device) >= visible[:, None]
    order = torch.sort(scores.masked_fill(hidden, -torch.inf), dim=1, descending=True, stable=True).indices[:, :top]
    return order.masked_fill_(order >= visible[:, None], blocks).sort(1).values
