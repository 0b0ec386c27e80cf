"""Routing, the expert pool and the experts' kernels against their definitions, as functions of a device and of sizes.

Run as tests/model/kernel_cases.py says.
"""

import torch
from carousel_kernels.experts import grouped
from carousel_kernels.experts import reference as experts_reference
from carousel_kernels.experts import triton as experts
from carousel_kernels.router import reference as router_reference
from carousel_kernels.router import triton as router
from torch import Tensor

from tests.model.kernel_cases import FP8, Draw, close, poisoned


def experts_block(
    device: str, count: int, top: int, width: int, inner: int, shared: int, rows: int, dtype: torch.dtype,
    pool: int | None = None,
) -> None:  # fmt: skip
    """Router, pool and experts of `rows` <= 4 rows; the winner of row 0 is the last expert."""
    draw = Draw(device, seed=count + rows)
    n = 4
    logits = draw(rows, count, std=2.0)
    logits[0, count - 1] = logits.max() + 1
    if rows > 1:
        logits[1, : top + 2] = logits.max() + 0.5  # equal logits: the lowest ids win
    experts_f, stored, scales = make_experts(draw, count, width, inner, dtype)
    y = torch.cat([logits, draw(rows, 2 * shared + 1)], 1)
    shared_down = draw(width, shared, std=shared**-0.5, dtype=torch.bfloat16)
    x, streams = draw(rows, width), draw(rows, n, width)
    amount = 2 * torch.sigmoid(draw(rows, n))
    weights, ids = router_reference.route(logits, top)
    gate_up = [e[: 2 * inner * width].view(2 * inner, width) for e in experts_f]
    down = [e[2 * inner * width :].view(width, inner) for e in experts_f]
    wanted = experts_reference.routed(x, weights, ids, gate_up, down)
    wanted += experts_reference.combine(y[:, count:-1].clone(), shared_down.float(), y[:, -1:])
    after = streams + amount[:, :, None] * wanted[:, None]

    def run(group: list[int]) -> Tensor:
        routes = router.Routes.empty(count, top, draw.device)
        most = 4 * top
        source = None
        if pool is None:
            slots, residency = stored, None
        else:
            slots = (
                torch.zeros(pool + most, stored.shape[1], dtype=torch.uint8, device=draw.device).view(dtype)
                if stored.element_size() == 1
                else torch.zeros(pool + most, stored.shape[1], dtype=dtype, device=draw.device)
            )
            residency = fresh_residency(count, pool, draw.device)
            source = addresses(stored, inner, width)
        slab = experts.Slab(slots, scales, inner)
        work = (
            poisoned(most, 4, inner, device=draw.device),
            poisoned(most + 1, 4, width, device=draw.device),
        )
        for _ in range(1 if pool is None else 3):
            own = streams[group].contiguous()
            if residency is not None:
                residency.tick.add_(1)
            rows_y = y[group]
            router.route(rows_y[:, :count], routes, residency, rows=len(group))
            if source is not None:
                experts.fetch(slab, source, routes, rows=len(group))
            experts.few_rows(
                x[group], rows_y, slab, shared_down, routes, residency, own, amount[group].contiguous(), work
            )
            assert torch.equal(routes.ids[: len(group)].long(), ids[group]), "other experts than the rule's"
            if residency is not None:
                check_residency(residency, slots, stored, routes, pool or 0)
        share = routes.weights[: len(group)]
        close(share / share.sum(1, keepdim=True), weights[group], 1e-5, "router weights")
        return own

    together = run(list(range(rows)))
    close(together, after, 1e-5, "experts")
    for r in range(rows):
        assert torch.equal(together[r], run([r])[0]), "experts depend on the rows beside"


def make_experts(
    draw: Draw, count: int, width: int, inner: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Experts as fp32, as stored, and their block scales [E, gate | up | down blocks] for FP8."""
    raw = draw(count, 3 * inner * width, std=width**-0.5)
    if dtype != FP8:
        stored = raw.to(dtype)
        return stored.float(), stored, None
    stored = (raw * 64).to(FP8)
    bi, bw = -(-inner // 128), -(-width // 128)
    scales = (0.5 + torch.rand(count, 3 * bi * bw, generator=draw.generator, device=draw.device)) / 64
    wide = stored.float()
    gate_up = wide[:, : 2 * inner * width].view(count, 2, inner, width)
    down = wide[:, 2 * inner * width :].view(count, width, inner)
    s = scales[:, : 2 * bi * bw].view(count, 2, bi, bw).repeat_interleave(128, 2).repeat_interleave(128, 3)
    gate_up = gate_up * s[:, :, :inner, :width]
    s = scales[:, 2 * bi * bw :].view(count, bw, bi).repeat_interleave(128, 1).repeat_interleave(128, 2)
    down = down * s[:, :width, :inner]
    return torch.cat([gate_up.flatten(1), down.flatten(1)], 1), stored, scales


def fresh_residency(count: int, pool: int, device: torch.device, stage: int | None = None) -> router.Residency:
    """An empty pool whose staging area follows it directly."""

    def full(n: int, value: int, dtype: torch.dtype) -> Tensor:
        return torch.full((n,), value, dtype=dtype, device=device)

    return router.Residency(
        table=full(count, -1, torch.int32),
        owner=full(pool, -1, torch.int32),
        used=full(pool, 0, torch.int64),
        counts=full(2, 0, torch.int64),
        tick=full(1, 0, torch.int64),
        stage=pool if stage is None else stage,
    )


def addresses(stored: Tensor, inner: int, width: int) -> Tensor:
    """[E, 3] int64: where gate, up and down of each expert lie."""
    each, part = stored.element_size() * stored.shape[1], stored.element_size() * inner * width
    first = stored.data_ptr() + torch.arange(stored.shape[0])[:, None] * each
    return (first + torch.arange(3) * part).to(stored.device)


def check_residency(r: router.Residency, slots: Tensor, stored: Tensor, routes: router.Routes, pool: int) -> None:
    """Table and owners agree, every published slot holds its expert's bytes, no expert is in two slots."""
    table, owner = r.table.tolist(), r.owner.tolist()
    held = [e for e in owner if e >= 0]
    assert len(held) == len(set(held))
    for slot, e in enumerate(owner):
        if e >= 0:
            assert table[e] == slot
            assert torch.equal(slots[slot].view(torch.uint8), stored[e].view(torch.uint8)), (
                f"slot {slot} is not expert {e}"
            )
    assert sum(s >= 0 for s in table) == len(held)
    distinct = int(routes.head[0])
    slots_used = routes.slots[:distinct].tolist()
    assert len(set(slots_used)) == distinct, "two experts of one step share a slot"
    assert all(s < pool + routes.slots.shape[0] for s in slots_used)


def experts_many(
    device: str, count: int, top: int, width: int, inner: int, rows: int, dtype: torch.dtype, exact: bool
) -> None:
    draw = Draw(device)
    experts_f, stored, scales = make_experts(draw, count, width, inner, dtype)
    x = draw(rows, width)
    x = x if exact else x.to(torch.bfloat16)
    weights, ids = router_reference.route(draw(rows, count), top)
    shared, opening = draw(rows, width), draw(rows, 3)[:, 1:2]
    gate_up = [e[: 2 * inner * width].view(2 * inner, width) for e in experts_f]
    down = [e[2 * inner * width :].view(width, inner) for e in experts_f]
    wanted = experts_reference.routed(x.float(), weights, ids, gate_up, down) + torch.sigmoid(opening) * shared
    place = torch.randperm(count, generator=torch.Generator().manual_seed(1)).to(draw.device)
    moved = torch.empty_like(stored.view(torch.uint8))
    moved[place] = stored.view(torch.uint8)
    slab = experts.Slab(moved.view(stored.dtype), scales, inner)
    got = grouped.many_rows(x, ids, weights, slab, place.to(torch.int32), shared, opening)
    close(got, wanted, 1e-5 if exact else 1e-2, "grouped experts")
    half = rows // 2
    again = grouped.many_rows(
        x[half:], ids[half:], weights[half:], slab, place.to(torch.int32), shared[half:], opening[half:]
    )
    assert torch.equal(got[half:], again), "a row depends on the rows beside it"


def pool_of_ten(device: str, count: int, width: int, inner: int) -> None:
    """4 rows with 10 experts each, all distinct, through 10 slots: 10 are filled, 30 come through staging, none is
    wrong."""
    draw, top, pool = Draw(device), 10, 10
    logits = torch.full((4, count), -20.0, device=draw.device)
    for r in range(4):
        logits[r, 10 * r : 10 * r + 10] = draw(10)
    experts_f, stored, _ = make_experts(draw, count, width, inner, torch.float32)
    routes = router.Routes.empty(count, top, draw.device)
    residency = fresh_residency(count, pool, draw.device)
    slots = poisoned(pool + 4 * top, stored.shape[1], device=draw.device)
    slab = experts.Slab(slots, None, inner)
    source = addresses(stored, inner, width)
    y, x, streams = torch.cat([logits, draw(4, 2 * 8 + 1)], 1), draw(4, width), draw(4, 1, width)
    amount, shared = 2 * torch.sigmoid(draw(4, 1)), draw(width, 8)
    work = poisoned(4 * top, 4, inner, device=draw.device), poisoned(4 * top + 1, 4, width, device=draw.device)
    weights, ids = router_reference.route(logits, top)
    parts = (
        [e[: 2 * inner * width].view(-1, width) for e in experts_f],
        [e[2 * inner * width :].view(width, inner) for e in experts_f],
    )
    wanted = experts_reference.routed(x, weights, ids, *parts)
    wanted += experts_reference.combine(y[:, count:-1].clone(), shared, y[:, -1:])
    after = streams + amount[:, :, None] * wanted[:, None]
    for turn in range(2):
        own = streams.clone()
        residency.tick.add_(1)
        router.route(y[:, :count], routes, residency, rows=4)
        assert routes.head[:2].tolist() == [40, 40 if turn == 0 else 30]
        kept = routes.misses[: int(routes.head[1]), 2]
        assert int(kept.sum()) == (pool if turn == 0 else 0), "a slot in use is no victim"
        experts.fetch(slab, source, routes, rows=4)
        experts.few_rows(x, y, slab, shared, routes, residency, own, amount, work)
        close(own, after, 1e-5, "experts through staging")
        check_residency(residency, slots, stored, routes, pool)
    assert residency.counts.tolist() == [80, 70]
