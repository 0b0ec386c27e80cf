"""The index of sparse attention, one key for each block of tokens: the definition, and the CPU backend."""

import torch
from torch import Tensor

from carousel_kernels.norm.reference import rms_norm
from carousel_kernels.rope.reference import rotate_


def append(
    raw: Tensor,
    tail: Tensor,
    index_keys: Tensor,
    scale: Tensor,
    cos: Tensor,
    sin: Tensor,
    start: int,
    ratio: int,
    eps: float,
) -> None:
    """Take the raw index keys of the rows start, start + 1, ...; write the key of every block they complete.

    A block is `ratio` tokens by index in the sequence. Its key is the mean of its raw keys, then norm, then rope at the
    position of its first token. raw [T, d]; tail [W, d], the raw key of position p at p % W, updated in place,
    W a multiple of ratio; index_keys [capacity / ratio, d], written in place; cos, sin [capacity, r].
    Blocks that are taken back are written again before any query can see them.
    """
    rows, window = raw.shape[0], tail.shape[0]
    end = start + rows
    first, last = start // ratio, end // ratio  # blocks completed: first .. last - 1
    if last > first:
        behind = start - first * ratio  # rows of the first block that came earlier
        whole = raw[: last * ratio - start]
        if behind:
            at = (first * ratio) % window
            whole = torch.cat([tail[at : at + behind], whole])
        means = whole.view(last - first, ratio, -1).mean(1)[:, None]
        at_first = slice(first * ratio, last * ratio, ratio)
        index_keys[first:last] = rotate_(rms_norm(means, scale, eps), cos[at_first], sin[at_first])[:, 0]
    for p in range(max(start, end - window), end):
        tail[p % window] = raw[p - start]


def scores(q: Tensor, index_keys: Tensor, scale: Tensor, cos: Tensor, sin: Tensor, blocks: int, eps: float) -> Tensor:
    """`sum over heads of relu(q_h . key_b) / sqrt(d)` for the first `blocks` blocks.

    q [T, h, d] as projected; index_keys [capacity / ratio, d]; scale [d]; cos, sin [T, r] of the queries.
    Returns [T, blocks] float32; which of them a query may see is for block_select.
    """
    rows, heads, width = q.shape
    turned = rotate_(rms_norm(q, scale, eps), cos, sin).view(rows * heads, width)
    dots = torch.mm(turned, index_keys[:blocks].t()).relu_()
    return dots.view(rows, heads, blocks).sum(1).mul_(width**-0.5)
