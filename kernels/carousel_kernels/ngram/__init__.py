"""N-gram hash embeddings."""

from carousel_kernels.ngram.reference import gather, rows

__all__ = ["gather", "rows"]
