"""Linear layers without bias."""

from carousel_kernels.linear.reference import linear

__all__ = ["linear"]
