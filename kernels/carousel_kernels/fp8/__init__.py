"""Block-scaled FP8 weights."""

from carousel_kernels.fp8.reference import BLOCK, dequantize

__all__ = ["BLOCK", "dequantize"]
