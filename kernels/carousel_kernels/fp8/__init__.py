"""Block-scaled FP8 weights."""

from carousel_kernels.fp8.reference import BLOCK, dequantize, quantize

__all__ = ["BLOCK", "dequantize", "quantize"]
