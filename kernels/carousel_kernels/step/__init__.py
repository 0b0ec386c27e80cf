"""What a decode step begins and ends with: its rows, their embeddings, and how many of them are kept."""

from carousel_kernels.step.reference import accept, behind, draft_rows

__all__ = ["accept", "behind", "draft_rows"]
