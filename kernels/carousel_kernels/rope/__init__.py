"""Rotary positions."""

from carousel_kernels.rope.reference import rotate_, tables

__all__ = ["rotate_", "tables"]
