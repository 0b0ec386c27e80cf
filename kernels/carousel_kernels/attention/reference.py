"""Gated attention over a cache, dense or over chosen blocks: the definition, and the CPU backend."""

import torch
from torch import Tensor

TILE = 256  # query rows at a time: bounds the score matrix


def attention(
    q: Tensor,
    gate: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    blocks: Tensor | None,
    ratio: int,
) -> Tensor:
    """`softmax(q . k / sqrt(d)) v * sigmoid(gate)` for the rows start, start + 1, ..., their own rows cached already.

    Query t sees positions up to its own. With `blocks` it sees only the tokens of those blocks and the open tail
    behind its last complete block; a query that completes its own block sees itself only if that block is chosen.

    q, gate [T, h, d]; keys, values [h_kv, capacity, d], head j using h_kv head j // (h / h_kv);
    blocks [T, K] int64 block indices, an entry beyond the visible blocks is ignored; ratio tokens a block.
    Returns [T, h * d].
    """
    rows, heads, width = q.shape
    mixed = torch.cat(
        [
            _tile(q[i : i + TILE], keys, values, start + i, None if blocks is None else blocks[i : i + TILE], ratio)
            for i in range(0, rows, TILE)
        ]
    )
    return (mixed * torch.sigmoid(gate)).view(rows, heads * width)


def _tile(q: Tensor, keys: Tensor, values: Tensor, start: int, blocks: Tensor | None, ratio: int) -> Tensor:
    rows, heads, width = q.shape
    kv, end = keys.shape[0], start + rows
    hidden = ~_seen(rows, start, end, blocks, ratio, q.device)
    grouped = q.view(rows, kv, heads // kv, width).permute(1, 2, 0, 3).reshape(kv, -1, width)
    scores = torch.bmm(grouped, keys[:, :end].transpose(1, 2)).mul_(width**-0.5)
    scores.view(-1, rows, end).masked_fill_(hidden, -torch.inf)
    mixed = torch.bmm(torch.softmax(scores, -1), values[:, :end])
    return mixed.view(heads, rows, width).transpose(0, 1)


def _seen(rows: int, start: int, end: int, blocks: Tensor | None, ratio: int, device: torch.device) -> Tensor:
    """[rows, end] bool."""
    at = torch.arange(end, device=device)
    query = torch.arange(start, end, device=device)[:, None]
    causal = at <= query
    if blocks is None:
        return causal
    count = -(-end // ratio)
    chosen = torch.zeros(rows, count + 1, dtype=torch.bool, device=device)
    chosen.scatter_(1, blocks.clamp(max=count), True)
    tail = at >= (query + 1) // ratio * ratio
    return causal & (tail | chosen[:, :count].repeat_interleave(ratio, 1)[:, :end])
