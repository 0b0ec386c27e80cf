"""Gated attention, dense or over chosen blocks."""

from carousel_kernels.attention.reference import attention

__all__ = ["attention"]
