"""Routed and shared experts."""

from carousel_kernels.experts.reference import combine, routed, shared

__all__ = ["combine", "routed", "shared"]
