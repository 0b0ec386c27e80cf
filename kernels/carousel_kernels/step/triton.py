"""Begin and end of a decode step on the device, so that one captured graph serves every slot, position and request.

`control` [4] int64: slot, position, token, rows waiting for the draft head. It is the only thing the host sets.
"""

import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import INTERPRETED, PDL, chain


@triton.jit
def _begin(
    p_control, p_tokens, p_where, p_draft_where, p_source, p_single, p_tick, capacity, kept,
    R: tl.constexpr, DRAFT: tl.constexpr,
):  # fmt: skip
    chain()
    slot, position = tl.load(p_control), tl.load(p_control + 1)
    token, waiting = tl.load(p_control + 2), tl.load(p_control + 3)
    tl.store(p_tokens + slot * capacity + position, token)
    tl.store(p_where, slot)
    for r in tl.static_range(R):
        tl.store(p_where + 1 + r, position + r)
    if R > 0:
        tl.store(p_tick, tl.load(p_tick) + 1)
    if DRAFT > 0:
        first = position - waiting
        tl.store(p_draft_where, slot)
        for r in tl.static_range(DRAFT):
            at = tl.maximum(first, position - DRAFT + r)
            tl.store(p_draft_where + 1 + r, at)
            tl.store(p_source + r, slot * kept + at - first)
        for i in tl.static_range(R):
            tl.store(p_single + 2 * i, slot)
            tl.store(p_single + 2 * i + 1, position - 1 + i)


def begin(
    control: Tensor,
    tokens: Tensor,
    where: Tensor,
    tick: Tensor,
    *,
    rows: int,
    draft: tuple[Tensor, Tensor, Tensor] | None = None,
    kept: int = 4,
) -> None:
    """Write the token behind the last row and say where the step's rows are.

    tokens [slots, capacity] int64; where [1 + rows] int64; tick [1] int64 is raised by one. With drafts,
    draft = (where of the draft head's first pass [1 + n], its hidden rows [n], where of each later pass [rows, 2]),
    int64; hidden rows are numbered slot * kept + order. rows = 0: only the draft head runs, and the tick stays.
    """
    draft_where, source, single = draft or (where, where, where)
    _begin[(1,)](
        control, tokens, where, draft_where, source, single, tick, tokens.stride(0), kept,
        R=rows, DRAFT=0 if draft is None else source.shape[0], launch_pdl=PDL, num_warps=1,
    )  # fmt: skip


@triton.jit
def _embed(
    p_tokens, p_where, p_embedding, p_streams, capacity,
    H: tl.constexpr, STREAMS: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    chain()
    i_r = tl.program_id(0)
    slot, t = tl.load(p_where), tl.load(p_where + 1 + i_r)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    m_h = o_h < H
    token = tl.load(p_tokens + slot * capacity + t)
    b = tl.load(p_embedding + token * H + o_h, mask=m_h, other=0.0).to(tl.float32)
    for c in tl.static_range(STREAMS):
        tl.store(p_streams + (i_r.to(tl.int64) * STREAMS + c) * H + o_h, b, mask=m_h)


def embed(tokens: Tensor, where: Tensor, embedding: Tensor, streams: Tensor) -> None:
    """Every stream of each row begins as the embedding [V, H] of its token: streams [T, n, H] fp32 is written."""
    rows, n, width = streams.shape
    bh = triton.next_power_of_2(width) if INTERPRETED else min(512, triton.next_power_of_2(width))
    _embed[(rows, triton.cdiv(width, bh))](
        tokens, where, embedding, streams, tokens.stride(0), H=width, STREAMS=n, BH=bh, launch_pdl=PDL, num_warps=2
    )


@triton.jit
def _put(p_control, p_tokens, p_id, capacity, behind):
    chain()
    slot, position = tl.load(p_control), tl.load(p_control + 1)
    tl.store(p_tokens + slot * capacity + position + behind, tl.maximum(tl.load(p_id), 0))


def put(control: Tensor, tokens: Tensor, chosen: Tensor, behind: int) -> None:
    """Write a drafted token `behind` places after the step's first; a NaN's -1 becomes 0 and is caught when
    verified."""
    _put[(1,)](control, tokens, chosen, tokens.stride(0), behind, launch_pdl=PDL, num_warps=1)


@triton.jit
def _commit(
    p_control, p_tokens, p_chosen, p_stops, p_applied, p_result, stops, capacity,
    R: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    chain()
    slot, position = tl.load(p_control), tl.load(p_control + 1)
    o_s = tl.arange(0, BS)
    b_stops = tl.load(p_stops + o_s, mask=o_s < stops, other=-1)
    taken = 1
    going = 1
    for r in tl.static_range(1, R):
        draft = tl.load(p_tokens + slot * capacity + position + r)
        right = (draft == tl.load(p_chosen + r - 1)) & (tl.max((b_stops == draft).to(tl.int32)) == 0)
        going = tl.where(right, going, 0)
        taken += going
    tl.store(p_applied + slot, position)
    tl.store(p_result, taken.to(tl.int64))  # type: ignore[attr-defined]
    for r in tl.static_range(R):
        tl.store(p_result + 1 + r, tl.load(p_chosen + r))


def commit(
    control: Tensor, tokens: Tensor, chosen: Tensor, stops: Tensor, applied: Tensor, result: Tensor, *, rows: int
) -> None:
    """Count the rows to keep (`reference.accept`) into result[0], the choices behind it; [5] int64.

    The DeltaNet state in memory is now that of the step's first position: applied[slot] says so.
    """
    _commit[(1,)](
        control, tokens, chosen, stops, applied, result, stops.shape[0], tokens.stride(0),
        R=rows, BS=triton.next_power_of_2(stops.shape[0]), launch_pdl=PDL, num_warps=1,
    )  # fmt: skip


@triton.jit
def _keep(
    p_control, p_result, p_logits, p_kept_logits, p_streams, p_kept_streams, V, width, kept, room,
    R: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    chain()
    i_b = tl.program_id(0)
    slot = tl.load(p_control)
    last = tl.load(p_result) - 1
    o_v = i_b * BV + tl.arange(0, BV)
    b = tl.load(p_logits + last * V + o_v, mask=o_v < V, other=0.0)
    tl.store(p_kept_logits + slot * V + o_v, b, mask=o_v < V)
    if i_b * BV < R * width:
        m = o_v < R * width
        p_kept = p_kept_streams + (slot * kept + tl.load(p_control + 3) % room) * width
        tl.store(p_kept + o_v, tl.load(p_streams + o_v, mask=m, other=0.0), mask=m)


def keep(
    control: Tensor,
    result: Tensor,
    logits: Tensor,
    kept_logits: Tensor,
    streams: Tensor,
    kept_streams: Tensor,
    *,
    room: int,
) -> None:
    """Keep the last kept row's logits for `select`, and all rows' streams for the draft head.

    logits [R, V]; kept_logits [slots, V]; streams [R, n, H]; kept_streams [slots, 4, n, H]; all fp32 and contiguous.
    room: waiting rows that the draft head takes at once; one row goes behind those that wait (`reference.behind`). A
    step with drafts has given all of them to the draft head: room 1, its rows are the first.
    """
    rows, vocab = logits.shape
    if room + rows - 1 > kept_streams.shape[1]:
        raise ValueError(f"{rows} rows behind {room - 1} others do not fit the {kept_streams.shape[1]} that are kept")
    width = streams.shape[1] * streams.shape[2]
    bv = 65536 if INTERPRETED else 1024
    _keep[(triton.cdiv(max(vocab, rows * width), bv),)](
        control, result, logits, kept_logits, streams, kept_streams, vocab, width, kept_streams.shape[1], room,
        R=rows, BV=bv, launch_pdl=PDL, num_warps=4,
    )  # fmt: skip
