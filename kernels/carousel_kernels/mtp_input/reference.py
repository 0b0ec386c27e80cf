"""The input of the draft head's layer: the definition, and the CPU backend."""

from torch import Tensor

from carousel_kernels.linear.reference import linear
from carousel_kernels.norm.reference import rms_norm


def fuse(
    embedding: Tensor,
    hidden: Tensor,
    embedding_scale: Tensor,
    hidden_scale: Tensor,
    fc_embedding: Tensor,
    fc_hidden: Tensor,
    eps: float,
) -> Tensor:
    """`fc_embedding rms_norm(embedding) + fc_hidden h_c` for each stream c, h one norm over all streams together.

    embedding [T, H], of the token that follows each row; hidden [T, n, H], the row's streams; embedding_scale [H];
    hidden_scale [n * H]; fc_embedding, fc_hidden [H, H]. A sum, not a concatenation. Returns streams [T, n, H].
    """
    rows, n, width = hidden.shape
    normed = rms_norm(hidden.reshape(rows, n * width), hidden_scale, eps)
    mixed = linear(normed.view(rows * n, width), fc_hidden).view(rows, n, width)
    return mixed.add_(linear(rms_norm(embedding, embedding_scale, eps), fc_embedding)[:, None])
