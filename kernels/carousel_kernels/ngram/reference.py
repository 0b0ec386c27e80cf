"""N-gram hash embeddings: the definition, and the CPU backend."""

from collections.abc import Sequence

import torch
from torch import Tensor

FEW_ROWS = 4  # up to here Python's integers are faster than tensors of one number


def rows(
    tokens: Tensor, start: int, multipliers: Tensor, sizes: Tensor, offsets: Tensor, heads: int, reset: int
) -> Tensor:
    """The table rows of the tokens at start, start + 1, ...

    With t_0 the token and t_1, t_2, ... those before it: `h_n = xor over i < n of t_i * multipliers[i]` (int64), and
    head j of the n-grams reads row `h_n mod size + offset`. Walking back, from the first t_i that is `reset` on, and
    before the sequence's start, everything reads as `reset`; t_0 may be `reset` without an effect on its own context.

    tokens [>= start + T] int64, the sequence from position 0 to its last row; multipliers [N]; sizes, offsets
    [(N - 1) * heads]. Returns [T, (N - 1) * heads] int64: bigram heads first.
    """
    count = tokens.shape[0] - start
    if count <= FEW_ROWS:
        few = _few_rows(tokens, start, multipliers.tolist(), sizes.tolist(), offsets.tolist(), heads, reset)
        return torch.tensor(few, device=tokens.device)
    current = tokens[start:]
    closed = torch.zeros(count, dtype=torch.bool, device=tokens.device)
    hashed = current * multipliers[0]
    levels = []
    for back in range(1, multipliers.shape[0]):
        before = torch.full_like(current, reset)
        if start >= back:
            before.copy_(tokens[start - back : start - back + count])
        elif count > back - start:
            before[back - start :] = tokens[: count - back + start]
        closed = closed | (before == reset)
        hashed = hashed ^ before.masked_fill_(closed, reset) * multipliers[back]
        levels.append(hashed[:, None].expand(count, heads))
    return torch.cat(levels, 1).remainder_(sizes).add_(offsets)


def _few_rows(
    tokens: Tensor, start: int, multipliers: list[int], sizes: list[int], offsets: list[int], heads: int, reset: int
) -> list[list[int]]:
    reach = len(multipliers) - 1
    seen = [reset] * max(0, reach - start) + tokens[max(0, start - reach) :].tolist()
    out = []
    for at in range(reach, len(seen)):
        hashed, closed, levels = seen[at] * multipliers[0], False, []
        for back in range(1, reach + 1):
            closed = closed or seen[at - back] == reset
            hashed ^= (reset if closed else seen[at - back]) * multipliers[back]
            levels += [hashed] * heads
        out.append([h % size + offset for h, size, offset in zip(levels, sizes, offsets, strict=True)])
    return out


def gather(shards: Sequence[Tensor], index: Tensor, scale: float) -> Tensor:
    """The embeddings of `rows`: the shards follow each other on rows and may stay mapped from a file.

    shards: each [rows of one shard, w], float8_e4m3fn, bfloat16 or float32; index [T, G] int64; scale multiplies every
    value (1.0 for other types than float8). Returns [T, G * w] float32.
    """
    if len(shards) == 1:
        found = shards[0].index_select(0, index.flatten())
    else:
        height = shards[0].shape[0]
        found = torch.stack([shards[i // height][i % height] for i in index.flatten().tolist()])
    out = found.to(torch.float32).view(index.shape[0], -1)
    return out if scale == 1.0 else out.mul_(scale)
