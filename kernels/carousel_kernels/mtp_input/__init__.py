"""The input of the draft head's layer."""

from carousel_kernels.mtp_input.reference import fuse

__all__ = ["fuse"]
