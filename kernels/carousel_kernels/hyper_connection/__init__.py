"""The residual of several streams."""

from carousel_kernels.hyper_connection.reference import inject_, mix

__all__ = ["inject_", "mix"]
