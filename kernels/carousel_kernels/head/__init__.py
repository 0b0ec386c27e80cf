"""Logits and the best of them."""

from carousel_kernels.head.reference import best, logits

__all__ = ["best", "logits"]
