"""Queries, keys and values before attention, and their cache."""

from carousel_kernels.attention_input.reference import append, query

__all__ = ["append", "query"]
