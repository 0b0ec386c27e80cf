"""The gated delta rule, recurrent and chunked."""

from carousel_kernels.gated_delta.reference import chunked, recurrent

__all__ = ["chunked", "recurrent"]
