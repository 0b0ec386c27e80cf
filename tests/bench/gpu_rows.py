"""The few-row kernels at the real shapes by block sizes: us, GB/s, error.

    python -m tests.bench.gpu_rows [--only experts] [--json FILE]

Each runs in a captured graph over copies of its weights that are together larger than the cache, for 1 and for 3 rows.
Before that it is compared with float64, and each of the rows with the same row alone, bit for bit: a kernel that is off
or depends on the number of rows is not timed, and fails the bench at its end.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from carousel_kernels.experts import triton as experts
from carousel_kernels.hyper_connection import triton as hyper_connection
from carousel_kernels.linear import triton as linear
from carousel_kernels.router import triton as router
from torch import Tensor
from torch.nn.functional import silu

from tests.bench.graph_time import graph_us

DEVICE = "cuda"
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
ROWS = (1, 3)
ENOUGH = 400e6  # bytes of weights that no cache holds
TOLERANCE = 1e-6
EPS = 1e-6


@dataclass
class Case:
    """One kernel with one choice of blocks. `call(i, first, rows)` runs rows from `first` on copy i of the weights;
    `out(rows)` is what it wrote, row by row; `wanted` [3, ...] is float64."""

    what: str
    block: Any
    nbytes: Callable[[int], int]
    copies: int
    call: Callable[[int, int, int], Any]
    out: Callable[[int], Tensor]
    wanted: Tensor


def product(out: int, width: int, blocks: list[tuple[int, int]], quick: bool, scaled: bool = False) -> Iterator[Case]:
    """A dense product; FP8 with block scales if `scaled`."""
    dtype = FP8 if scaled else BF16
    copies = 1 if quick else max(2, int(ENOUGH // (out * width * dtype.itemsize)))
    spread = 32 if scaled else 0.02
    weights = [torch.randn(out, width, device=DEVICE).mul_(spread).to(dtype) for _ in range(copies)]
    scale = torch.rand(-(-out // 128), -(-width // 128), device=DEVICE) / 64 if scaled else None
    x, y = torch.randn(3, width, device=DEVICE), torch.empty(3, out, device=DEVICE)
    part = slice(max(0, out - 4096 - out % 128), out)  # float64 of all rows of the head would take 5 GB
    wide = weights[0][part].double()
    if scale is not None:
        wide *= scale.double()[part.start // 128 :].repeat_interleave(128, 0)[: len(wide)].repeat_interleave(128, 1)

    def case(block: tuple[int, int]) -> Case:
        def call(i: int, first: int, rows: int) -> None:
            linear.few_rows(x[first : first + rows], weights[i], y[:rows], scale=scale, block=block)

        return Case(
            f"{'FP8 ' if scaled else ''}[{out},{width}]", block, lambda _: out * width * dtype.itemsize, copies, call,
            lambda rows: y[:rows, part], x.double() @ wide.T,
        )  # fmt: skip

    yield from map(case, blocks)


def mixes(quick: bool) -> Iterator[Case]:
    """Hyper-connections into a block, down and up apart."""
    n, width, rank = 4, 2560, 320
    copies = 1 if quick else int(ENOUGH // (2 * (rank + n) * n * width))
    downs = [torch.randn(rank + n, n * width, device=DEVICE).mul_(0.03).to(BF16) for _ in range(copies)]
    ups = [torch.randn(n * width, rank, device=DEVICE).mul_(0.16).to(BF16) for _ in range(copies)]
    scale, streams = torch.rand(n, width, device=DEVICE) + 0.5, torch.randn(3, n, width, device=DEVICE)
    d = streams.double()
    normed = d / (d.square().mean(2, keepdim=True) + EPS).sqrt() * scale.double()
    low = normed.view(3, -1) @ downs[0].double().T
    gate = torch.sigmoid(silu(low[:, :rank] / n) @ ups[0].double().T)
    part, rstd = torch.empty(n * 3 * (rank + n), device=DEVICE), torch.empty(3 * n, device=DEVICE)
    x, amount = torch.empty(3, width, device=DEVICE), torch.empty(3, n, device=DEVICE)

    def parts(rows: int) -> Tensor:
        return part[: n * rows * (rank + n)].view(n, rows, rank + n)

    def down(i: int, first: int, rows: int) -> None:
        own = streams[first : first + rows]
        hyper_connection.mix_down(own, scale, downs[i], parts(rows), rstd[: rows * n].view(rows, n), EPS)

    def up(i: int, first: int, rows: int) -> None:
        own = streams[first : first + rows]
        hyper_connection.mix_up(
            own, scale, ups[i], parts(rows), rstd[: rows * n].view(rows, n), x[:rows], amount[:rows]
        )

    def both(i: int, first: int, rows: int) -> None:
        down(i, first, rows)
        up(i, first, rows)

    each = 2 * (rank + n) * n * width
    wide, mixed = low.view(3, 1, -1), (gate.view(3, n, width) * normed).mean(1)
    before = hyper_connection.MIX_DOWN, hyper_connection.MIX_UP
    for block in ((4, 4), (8, 4), (4, 8), (8, 8), (2, 2)):
        hyper_connection.MIX_DOWN = block
        yield Case("mix down", block, lambda _: each, copies, down, lambda r: parts(r).sum(0)[:, None], wide)
    hyper_connection.MIX_DOWN = before[0]
    for block in ((8, 4), (16, 4), (4, 4), (2, 4)):
        hyper_connection.MIX_UP = block
        yield Case("mix down and up", block, lambda _: 2 * each, copies, both, lambda r: x[:r], mixed)
    hyper_connection.MIX_UP = before[1]


def routed(quick: bool) -> Iterator[Case]:
    """Routed and shared experts of one layer, FP8, other experts for every call: gate and up, down, sum."""
    count, top, width, inner, n = 512, 10, 2560, 640, 4
    copies = 1 if quick else 8
    slots = torch.empty(count, 3 * inner * width, dtype=FP8, device=DEVICE)
    for e in range(0, count, 32):
        slots[e : e + 32] = torch.randn(32, slots.shape[1], device=DEVICE).mul_(32).to(FP8)
    scales = (0.5 + torch.rand(count, 3 * 5 * 20, device=DEVICE)) / (32 * 50)
    slab = experts.Slab(slots, scales, inner)
    shared = torch.randn(width, inner, device=DEVICE).mul_(0.04).to(BF16)
    x, streams = torch.randn(3, width, device=DEVICE), torch.zeros(3, n, width, device=DEVICE)
    amount = torch.ones(3, n, device=DEVICE)
    work = torch.empty(4 * top, 4, inner, device=DEVICE), torch.empty(4 * top + 1, 4, width, device=DEVICE)
    ys = [torch.randn(3, count + 2 * inner + 1, device=DEVICE) for _ in range(copies)]
    routes: dict[tuple[int, int, int], router.Routes] = {}
    for i in range(copies):
        for first, rows in ((0, 1), (1, 1), (2, 1), (0, 3)):
            one = router.Routes.empty(count, top, torch.device(DEVICE))
            router.route(ys[i][first : first + rows, :count], one, None, rows=rows)
            routes[i, first, rows] = one

    def nbytes(rows: int) -> int:
        distinct = sum(int(routes[i, 0, rows].head[0]) for i in range(copies)) / copies
        return int(distinct * 3 * inner * width + 2 * inner * width)

    def call(i: int, first: int, rows: int) -> None:
        own = streams[:rows]
        if i == 0:
            own.zero_()
        experts.few_rows(
            x[first : first + rows], ys[i][first : first + rows], slab, shared, routes[i, first, rows], None, own,
            amount[:rows], work,
        )  # fmt: skip

    y, wanted = ys[0].double(), torch.zeros(3, width, device=DEVICE, dtype=torch.float64)
    for r in range(3):
        one = routes[0, r, 1]
        share = one.weights[0].double() / one.weights[0].double().sum()
        hidden = silu(y[r, count : count + inner]) * y[r, count + inner : -1]
        wanted[r] = torch.sigmoid(y[r, -1]) * (shared.double() @ hidden)
        for j, e in enumerate(one.ids[0].tolist()):
            v, s = slots[e].double(), scales[e].double()
            s_in = s[:200].view(2, 5, 20).repeat_interleave(128, 1).repeat_interleave(128, 2)
            s_out = s[200:].view(20, 5).repeat_interleave(128, 0).repeat_interleave(128, 1)
            gate, up = (v[: 2 * inner * width].view(2, inner, width) * s_in) @ x[r].double()
            wanted[r] += share[j] * ((v[2 * inner * width :].view(width, inner) * s_out) @ (silu(gate) * up))
    before = experts.GATE_UP, experts.DOWN
    for gate_up, down in ((2, 8), (1, 8), (2, 4), (1, 4)):
        experts.GATE_UP, experts.DOWN = gate_up, down
        yield Case("experts", (gate_up, down), nbytes, copies, call, lambda r: streams[:r, 0], wanted)
    experts.GATE_UP, experts.DOWN = before


def cases(quick: bool, only: str = "") -> Iterator[Case]:
    """Everything that is timed whose group's name holds `only`; `quick`: with one copy of the weights."""
    short = [(2, 2), (2, 1), (4, 4), (2, 4)]
    shapes = (16480, 2560), (13952, 2560), (1793, 2560), (248320, 2560), (2560, 6144)
    groups: dict[str, Callable[[], Iterator[Case]]] = {}
    for out, width in shapes:
        blocks = short if width == 2560 else [(4, 4), (2, 4), (4, 8), (2, 2), (2, 8), (8, 8)]
        groups[f"[{out},{width}]"] = partial(product, out, width, blocks, quick)
    for out, width in (shapes[0], shapes[-2], shapes[-1]):
        groups[f"FP8 [{out},{width}]"] = partial(product, out, width, [(4, 1), (2, 1), (8, 1)], quick, scaled=True)
    groups |= {"mixes": partial(mixes, quick), "experts": partial(routed, quick)}
    for name, make in groups.items():
        if only in name:
            yield from make()


def check(case: Case) -> float:
    """The larger relative error of copy 0; raises if it is too large or if a row depends on the number of rows."""
    case.out(3).fill_(torch.nan)
    case.call(0, 0, 3)
    together = case.out(3).clone()
    error = float((together.double() - case.wanted).norm() / case.wanted.norm())
    for r in range(3):
        case.call(0, r, 1)
        assert torch.equal(case.out(1)[0], together[r]), f"{case.what} {case.block}: row {r} is another alone"
    assert error < TOLERANCE, f"{case.what} {case.block}: error {error:.1e}"
    return error


def case_us(case: Case, rows: int) -> tuple[float, float]:
    """Median and spread of a call, from replays over all copies."""

    def run() -> None:
        for i in range(case.copies):
            case.call(i, 0, rows)

    return graph_us(run, calls=case.copies, repeats=7)


def compile_share(at: int, of: int, only: str) -> None:
    """Compile every of-th case into the cache."""
    for i, case in enumerate(cases(True, only)):
        if i % of == at:
            for rows in ROWS:
                case.call(0, 0, rows)
    torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="kernels whose group holds this: mixes, experts, FP8, 6144 ...")
    parser.add_argument("--compile", nargs=2, type=int, metavar=("AT", "OF"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        compile_share(*options.compile, options.only)
        return 0
    begin, workers = time.perf_counter(), 12
    command = [sys.executable, "-m", "tests.bench.gpu_rows", "--only", options.only, "--compile"]
    for process in [subprocess.Popen([*command, str(i), str(workers)]) for i in range(workers)]:
        process.wait()
    print(f"compiled in {time.perf_counter() - begin:.0f} s")
    found: list[dict[str, Any]] = []
    wrong = 0
    torch.manual_seed(1)
    with torch.inference_mode():
        for case in cases(False, options.only):
            try:
                error = check(case)
            except Exception as failure:  # the others are still worth their time on the device
                wrong += 1
                print(f"{case.what} {case.block}: {str(failure)[:200]!r}")
                continue
            us, spread = zip(*(case_us(case, rows) for rows in ROWS), strict=True)
            rate = [case.nbytes(rows) / t / 1000 for rows, t in zip(ROWS, us, strict=True)]
            found.append({
                "what": case.what, "block": case.block, "rows": ROWS, "us": us, "spread": spread, "GBs": rate,
                "error": error,
            })  # fmt: skip
            print(
                f"{case.what:<18} {case.block!s:<8} {us[0]:7.2f} {us[1]:7.2f} us  +- {max(spread):.2f}  "
                f"{rate[0]:5.0f} {rate[1]:5.0f} GB/s  {error:.0e}"
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print(f"{time.perf_counter() - begin:.0f} s")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
