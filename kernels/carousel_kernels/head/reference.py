"""Logits: the definition, and the CPU backend."""

from torch import Tensor

from carousel_kernels.linear.reference import linear


def logits(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T` in float32: x [T, H], weight [V, H]; returns [T, V], padding ids included."""
    return linear(x, weight)


def best(scores: Tensor, valid: int) -> Tensor:
    """The highest of the first `valid` logits of each row, the lowest id among equals: [T, V] to [T] int64."""
    return scores[:, :valid].argmax(-1)
