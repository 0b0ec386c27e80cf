"""From logits to a token: the definition, and the CPU backend.

The order is: mask and invalid ids, bias, penalties (`adjust`); temperature, top-k, top-p, min-p, draw (`choose`).
"""

import math

import torch
from torch import Tensor

UNIT = 2.0**42  # the mass of the highest logit; the masses of 2**20 ids fit an int64


def adjust(
    logits: Tensor,
    valid: int,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    counts: Tensor | None = None,
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
) -> Tensor:
    """The logits that a choice is made from; an id that may not be chosen is -inf.

    logits [V] float32, unchanged; ids >= valid may not be chosen; mask [V] bool, True = allowed; bias [V] float32 is
    added; counts [V] int32, how often each id occurred in prompt and output. An id that occurred has its logit divided
    by `repetition` if positive, else multiplied by it; then `frequency * count + presence` is subtracted.
    Returns [valid] float32.
    """
    x = logits[:valid].clone()
    if mask is not None:
        x.masked_fill_(~mask[:valid], -torch.inf)
    if bias is not None:
        x += bias[:valid]
    if counts is not None:
        seen = counts[:valid]
        occurred = seen > 0
        if repetition != 1.0:
            x = torch.where(occurred, torch.where(x > 0, x / repetition, x * repetition), x)
        x -= seen * frequency + occurred * presence
    return x


def masses(x: Tensor, temperature: float) -> Tensor:
    """What each id weighs in the draw: round(exp((x - max) / temperature) * UNIT), [V] float32 to [V] int64.

    Whole numbers, so that their sums are exact in any order, on every device.
    """
    best = x.max()
    weight = torch.where(x == best, 1.0, ((x.double() - best.double()) / temperature).exp())
    return (weight * UNIT + 0.5).long()


def choose(
    x: Tensor, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, uniform: float = 0.0
) -> Tensor:
    """The chosen id, a 0-dimensional int64 tensor.

    x [V] float32 from `adjust`, V <= 2**20, no NaN and not all -inf. Temperature 0 takes the highest, the lowest id
    among equals; nothing else is used. Otherwise ids are kept in the order of x, the lowest id first among equals:
    top_k > 0 keeps that many; then top_p < 1 keeps the shortest run whose share of the kept mass reaches top_p, at
    least one; then min_p keeps a mass >= min_p of the highest. The draw takes, among the kept in ascending id order,
    the first whose cumulative mass exceeds `uniform` (in [0, 1)) of the whole.
    """
    if temperature == 0.0:
        return x.argmax()
    mass = masses(x, temperature)
    if 0 < top_k < x.shape[0] or top_p < 1.0:
        order = torch.sort(x, descending=True, stable=True).indices
        if top_k > 0:
            order = order[:top_k]
        if top_p < 1.0:
            run = mass[order].cumsum(0)
            order = order[: 1 + int((run[:-1] < math.ceil(top_p * float(run[-1]))).sum())]
        mass = torch.zeros_like(mass).index_copy_(0, order, mass[order])
    if min_p > 0.0:
        mass = mass.masked_fill(mass.double() < min_p * UNIT, 0)
    run = mass.cumsum(0)
    whole = int(run[-1])
    return torch.searchsorted(run, min(int(uniform * whole), whole - 1), right=True)


def logprobs(logits: Tensor, valid: int, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """Log-softmax of the raw logits over the valid ids: of `token`, and of the `top` best.

    Best first, the lowest id first among equals.
    """
    x = torch.log_softmax(logits[:valid].float(), 0)
    best = torch.sort(x, descending=True, stable=True) if top else None
    pairs = [] if best is None else list(zip(best.indices[:top].tolist(), best.values[:top].tolist(), strict=True))
    return float(x[token]), pairs
