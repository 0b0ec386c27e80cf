"""Depthwise causal convolution over a ring of rows."""

from carousel_kernels.causal_conv.reference import causal_conv

__all__ = ["causal_conv"]
