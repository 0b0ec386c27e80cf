"""Which experts serve a token."""

from carousel_kernels.router.reference import route

__all__ = ["route"]
