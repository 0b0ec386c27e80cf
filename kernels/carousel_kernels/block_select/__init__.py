"""Which blocks a query attends to."""

from carousel_kernels.block_select.reference import select

__all__ = ["select"]
