"""The index keys of sparse attention and their scores."""

from carousel_kernels.indexer.reference import append, scores

__all__ = ["append", "scores"]
