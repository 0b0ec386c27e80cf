"""Routing of up to four rows on the GPU: experts of each row, the union of them, and where each of those is or goes.

One program decides everything that the expert kernels of this layer need, so no host decision is inside a step.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from carousel_kernels.row_dot import PDL, chain, when

ROUTE_WARPS = [4, 8]  # for one row, for more
HEADER = 4  # int32: distinct experts, misses, and two spare


@dataclass(frozen=True)
class Routes:
    """Device buffers that routing writes and the expert kernels of the same layer read; reused by the next layer."""

    head: Tensor  # [4] int32: number of distinct experts, number of misses
    ids: Tensor  # [4, top] int32, best first
    weights: Tensor  # [4, top] fp32, in proportion: the best is 1
    rank: Tensor  # [E] int32: an expert's place among the distinct ones
    experts: Tensor  # [4 * top] int32, distinct, ascending
    slots: Tensor  # [4 * top] int32: where each of them is read from
    rows: Tensor  # [4 * top] int32: bit r is set if row r chose it
    misses: Tensor  # [4 * top, 3] int32: expert, slot it is fetched into, 1 if the slot belongs to the pool

    @classmethod
    def empty(cls, experts: int, top: int, device: torch.device) -> "Routes":
        """Buffers for four rows."""

        def ints(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int32, device=device)

        most = 4 * top
        weights = torch.zeros(4, top, dtype=torch.float32, device=device)
        return cls(
            ints(HEADER),
            ints(4, top),
            weights,
            ints(experts),
            ints(most),
            ints(most),
            ints(most),
            ints(most, 3),
        )


@triton.jit
def _route(
    p_logits,
    p_head,
    p_ids,
    p_weights,
    p_rank,
    p_experts,
    p_slots,
    p_rows,
    p_misses,
    p_table,
    p_owner,
    p_used,
    p_counts,
    p_tick,
    stride_logits,
    stage,
    E: tl.constexpr,
    TOP: tl.constexpr,
    R: tl.constexpr,
    SLOTS: tl.constexpr,
    POOLED: tl.constexpr,
    BR: tl.constexpr,
    BE: tl.constexpr,
    BS: tl.constexpr,
):
    chain()
    o_r, o_e = tl.arange(0, BR), tl.arange(0, BE)
    m_e = o_e < E
    m_x = (o_r < R)[:, None] & m_e[None, :]
    b_x = tl.load(p_logits + o_r[:, None] * stride_logits + o_e[None, :], mask=m_x, other=0.0)
    bits = b_x.to(tl.int32, bitcast=True)
    # ascending as integers; the least of all stands for no logit
    key = tl.where(
        m_x,
        tl.maximum(tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF), -0x7FFFFFFF),
        -0x80000000,
    )
    best = tl.zeros([BR], tl.float32)
    chosen = tl.zeros([BR, BE], tl.int32)
    for i in tl.static_range(TOP):
        high = tl.max(key, 1)
        e = tl.min(tl.where(key == high[:, None], o_e[None, :], BE), 1)  # of equal logits the lowest id
        logit = tl.where(high >= 0, high, high ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)
        if i == 0:
            best = logit
        tl.store(p_ids + o_r * TOP + i, e, mask=o_r < R)
        tl.store(p_weights + o_r * TOP + i, tl.exp(logit - best), mask=o_r < R)
        hit = o_e[None, :] == e[:, None]
        chosen = tl.where(hit, 1, chosen)
        key = tl.where(hit, -0x80000000, key)
    by = tl.sum(tl.where(m_x, chosen, 0) << o_r[:, None], 0)
    union = (by > 0).to(tl.int32)
    rank = tl.cumsum(union, 0) - union
    distinct = tl.sum(union)
    tl.store(p_rank + o_e, rank, mask=m_e)
    tl.store(p_experts + rank, o_e, mask=union == 1)
    tl.store(p_rows + rank, by, mask=union == 1)
    if POOLED:
        tick = tl.load(p_tick)
        table = tl.load(p_table + o_e, mask=m_e, other=-1)
        hit = (union == 1) & (table >= 0)
        miss = (union == 1) & (table < 0)
        tl.store(p_slots + rank, table, mask=hit)
        tl.store(p_used + table, tl.zeros([BE], tl.int64) + tick, mask=hit)
        misses = tl.sum(miss.to(tl.int32))
        tl.debug_barrier()
        o_s = tl.arange(0, BS)
        used = tl.load(p_used + o_s, mask=o_s < SLOTS, other=0x7FFFFFFFFFFF)
        for i in range(misses):
            one = tl.min(tl.where(miss, o_e, BE))
            # the least recently used slot; one that served this step is no victim
            age = tl.min(tl.where((o_s < SLOTS) & (used < tick), used * BS + o_s, 0x7FFFFFFFFFFFFFFF))
            found = age < 0x7FFFFFFFFFFFFFFF
            victim = (age % BS).to(tl.int32)
            slot = tl.where(found, victim, stage + i)
            old = tl.load(p_owner + victim, mask=found, other=-1)
            tl.store(p_table + old, -1, mask=old >= 0)
            tl.store(p_owner + victim, -1, mask=found)
            tl.store(p_slots + tl.sum(tl.where(o_e == one, rank, 0)), slot)
            tl.store(p_misses + i * 3, one)
            tl.store(p_misses + i * 3 + 1, slot)
            tl.store(p_misses + i * 3 + 2, found.to(tl.int32))
            miss = miss & (o_e != one)
            used = tl.where(when(o_s == victim, found), tick, used)
        tl.store(p_used + o_s, used, mask=o_s < SLOTS)
        tl.store(p_counts, tl.load(p_counts) + distinct)
        tl.store(p_counts + 1, tl.load(p_counts + 1) + misses)
        tl.store(p_head + 1, misses)
    else:
        tl.store(p_slots + rank, o_e, mask=union == 1)
    tl.store(p_head, distinct)


@dataclass(frozen=True)
class Residency:
    """Which experts of one layer are in its pool slots. `stage` is the first slot, counted like the pool's, of the
    staging area that serves experts for which no slot is free in this step."""

    table: Tensor  # [E] int32: slot or -1
    owner: Tensor  # [slots] int32: expert or -1
    used: Tensor  # [slots] int64: tick of the last use
    counts: Tensor  # [2] int64: selected, missed; only ever added to
    tick: Tensor  # [1] int64, one for all layers, raised once a step
    stage: int


def route(logits: Tensor, routes: Routes, residency: Residency | None, *, rows: int) -> None:
    """Choose the experts of `rows` <= 4 rows and plan their reads.

    logits [rows, E] fp32, any row stride; without `residency` expert e is in slot e. A missed expert gets the least
    recently used slot that no row of this step uses, or a staging slot; its old owner leaves the table here, the new
    one
    enters it only in `experts.publish`.
    """
    experts, top = routes.rank.shape[0], routes.ids.shape[1]
    if not 1 <= rows <= 4 or logits.shape[1] != experts or logits.stride(1) != 1:
        raise ValueError(f"logits {tuple(logits.shape)} for {rows} rows of {experts} experts")
    r = residency
    dummy = routes.head
    slots = 1 if r is None else r.owner.shape[0]
    _route[(1,)](
        logits, routes.head, routes.ids, routes.weights, routes.rank, routes.experts, routes.slots, routes.rows,
        routes.misses, dummy if r is None else r.table, dummy if r is None else r.owner, dummy if r is None else r.used,
        dummy if r is None else r.counts, dummy if r is None else r.tick, logits.stride(0), 0 if r is None else r.stage,
        E=experts, TOP=top, R=rows, SLOTS=slots, POOLED=r is not None, BR=triton.next_power_of_2(rows),
        BE=triton.next_power_of_2(experts), BS=triton.next_power_of_2(slots), launch_pdl=PDL,
        num_warps=ROUTE_WARPS[rows > 1],
    )  # fmt: skip
