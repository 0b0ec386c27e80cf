"""Bandwidth of the decode kernels at the real shapes, by block sizes. `python tests/bench/gpu_kernels.py [out.json]`

Every kernel runs in a captured graph over several copies of its weights, which are larger than the cache together.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from carousel_kernels.linear import triton as linear

DEVICE = "cuda"
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def graph_ms(run: Callable[[], None], repeats: int = 7) -> tuple[float, float]:
    """Median and spread (max - min) in ms of a replay of `run` captured once."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times[2:]), max(times[2:]) - min(times[2:])


def gemv(out: int, width: int, rows: int, blocks: list[tuple[int, int]], dtype: torch.dtype) -> list[dict]:
    copies = max(2, int(400e6 // (out * width * dtype.itemsize)))
    weights = [(torch.randn(out, width, device=DEVICE) * 0.02).to(dtype) for _ in range(copies)]
    x, y = torch.randn(rows, width, device=DEVICE), torch.empty(rows, out, device=DEVICE)
    found = []
    for block in blocks:

        def run(block=block):
            for w in weights:
                linear.few_rows(x, w, y, block=block)

        ms, spread = graph_ms(run)
        found.append(
            {
                "what": f"[{out},{width}] {dtype} rows {rows}",
                "block": block,
                "us": 1000 * ms / copies,
                "TBs": copies * out * width * dtype.itemsize / ms / 1e9,
                "spread": spread / ms,
            }
        )
    return found


def tensor(out: int, width: int, rows: int, blocks: list[tuple[int, int, int, int]]) -> list[dict]:
    """The same on tensor cores; checked against float64 first."""
    copies = max(2, int(400e6 // (out * width * 2)))
    weights = [(torch.randn(out, width, device=DEVICE) * 0.02).to(BF16) for _ in range(copies)]
    x, y = torch.randn(rows, width, device=DEVICE), torch.empty(rows, out, device=DEVICE)
    found = []
    for block in blocks:
        y.fill_(torch.nan)
        linear.tensor_rows(x, weights[0], y, block=block)
        wanted = x.double() @ weights[0][:4096].double().T
        error = float((y[:, :4096] - wanted).norm() / wanted.norm())
        alone = linear.tensor_rows(x[-1:], weights[0], torch.empty(1, out, device=DEVICE), block=block)
        same = torch.equal(alone[0], y[-1])

        def run(block=block):
            for w in weights:
                linear.tensor_rows(x, w, y, block=block)

        ms, spread = graph_ms(run)
        found.append(
            {
                "what": f"[{out},{width}] tensor rows {rows}",
                "block": block,
                "us": 1000 * ms / copies,
                "error": error,
                "same": same,
                "TBs": copies * out * width * 2 / ms / 1e9,
                "spread": spread / ms,
            }
        )
    return found


def main() -> None:
    results = []
    for out, width in ((16480, 2560), (2560, 6144), (1793, 2560), (248320, 2560)):
        results += gemv(out, width, 1, [(8, 4), (4, 4), (4, 2), (2, 4)], BF16)
        blocks = [
            (bn, bk, w, s)
            for bn in (16, 32, 64)
            for bk in (128, 256)
            for w in (2, 4)
            for s in (3, 5)
            if bn * bk * 2 * s < 100_000 and (out > 4096 or bn < 64)
        ]
        for rows in (1, 3):
            results += tensor(out, width, rows, blocks if rows == 3 else blocks[:4])
    for r in sorted(results, key=lambda r: (r["what"], -r["TBs"])):
        print(
            f"{r['what']:<45} {r['block']!s:<16} {r['us']:8.2f} us {r['TBs']:6.2f} TB/s"
            f"  spread {100 * r['spread']:.0f}% "
            f"{r.get('error', 0):.0e} {r.get('same', '')}"
        )
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
