"""From logits to a token: the definition, and the CPU backend.

The order is: mask and invalid ids, bias, penalties (`adjust`); temperature, top-k, top-p, min-p, draw (`choose`).
"""

import torch
from torch import Tensor


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


def choose(
    x: Tensor, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, uniform: float = 0.0
) -> Tensor:
    """The chosen id, a 0-dimensional int64 tensor.

    x [V] float32 from `adjust`. Temperature 0 takes the highest, the lowest id among equals; nothing else is used.
    Otherwise p = softmax(x / temperature), and ids are kept in the order of p, the lowest id first among equals:
    top_k > 0 keeps that many; then top_p keeps the shortest run whose share of the kept mass reaches top_p, at least
    one; then min_p keeps p >= min_p * max(p). The draw takes, among the kept in ascending id order, the first whose
    cumulative mass exceeds `uniform` (in [0, 1)) of the whole. Sums are float64.
    """
    if temperature == 0.0:
        return x.argmax()
    p = torch.softmax((x.double() - x.max()) / temperature, 0)
    if 0 < top_k < p.shape[0] or top_p < 1.0:
        sorted_p, ids = torch.sort(p, descending=True, stable=True)
        keep = min(top_k, p.shape[0]) if top_k > 0 else p.shape[0]
        if top_p < 1.0:
            mass = sorted_p[:keep].cumsum(0)
            keep = 1 + int((mass[:-1] < top_p * mass[-1]).sum())
        p = torch.zeros_like(p).index_copy_(0, ids[:keep], sorted_p[:keep])
    if min_p > 0.0:
        p = p.masked_fill(p < min_p * p.max(), 0.0)
    mass = p.cumsum(0)
    # a mass that rounds to the whole still ends on an id that was kept
    drawn = torch.searchsorted(mass, uniform * mass[-1], right=True)
    return torch.minimum(drawn, torch.searchsorted(mass, mass[-1]))


def logprobs(logits: Tensor, valid: int, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """Log-softmax of the raw logits over the valid ids: of `token`, and of the `top` best.

    Best first, the lowest id first among equals.
    """
    x = torch.log_softmax(logits[:valid].float(), 0)
    best = torch.sort(x, descending=True, stable=True) if top else None
    pairs = [] if best is None else list(zip(best.indices[:top].tolist(), best.values[:top].tolist(), strict=True))
    return float(x[token]), pairs
