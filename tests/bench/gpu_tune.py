"""Block sizes of a decode step's kernels, one change at a time, on a model of 8 layers at the real shapes.

`python -m tests.bench.gpu_tune [out.json]`: ms of a step for each choice. A step is recaptured for each of them.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from carousel_kernels.experts import triton as experts
from carousel_kernels.hyper_connection import triton as hyper_connection
from carousel_kernels.linear import triton as linear
from carousel_kernels.router import triton as router
from carousel_server.engine.graphs import Steps

from tests.bench.gpu_random_model import build, released

CHOICES: list[tuple[str, list[Any], list[list[Any]]]] = [
    ("short", linear.SHORT, [[2, 2], [2, 1], [4, 4], [2, 4]]),
    ("long", linear.LONGER, [[2, 8], [4, 4], [2, 4], [4, 8]]),
    ("mix up", hyper_connection.MIX_UP, [[8, 4], [16, 4], [4, 4], [16, 8]]),
    ("mix down", hyper_connection.MIX_DOWN, [[4, 4], [8, 4], [8, 8], [2, 2]]),
    ("gate up", experts.GATE_UP, [[2, 1], [1, 1], [4, 1]]),
    ("down", experts.DOWN, [[8, 8], [4, 8], [16, 8]]),
    ("route warps", router.ROUTE_WARPS, [[4, 8], [1, 8], [2, 8], [8, 8]]),
]


def measure(engine: Any, slot: int) -> tuple[float, float]:
    """us of a replay: median and spread of 7 times 20."""
    steps = Steps(engine.forward, valid=248077, stops=frozenset(), drafts=0, graphs=True)
    engine.steps.kept = [*getattr(engine.steps, "kept", []), steps]  # a graph that dies during a capture breaks it
    steps._set[:] = (slot, 100, 7, 0)
    graph, times = steps._graphs[0, False], []
    for _ in range(8):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - begin) / 20)
    return median(times[1:]), max(times[1:]) - min(times[1:])


def main() -> None:
    with torch.inference_mode():
        bench = build(released(layers=8, ngram_base=200_000), context=2048, table_bytes=2**26, drafts=0, slots=1)
        engine = bench.engine
        seq = engine.create(2048)
        engine.prefill(seq, list(range(100, 400)))
        found = []
        for name, setting, choices in CHOICES:
            before, results = list(setting), []
            for choice in choices:
                setting[:] = choice
                try:
                    us, spread = measure(engine, seq.slot)
                except Exception as error:
                    print(name, choice, repr(error)[:200])
                    continue
                results.append((us, choice, spread))
                print(f"{name:<10} {choice!s:<16} {us:8.1f} us  spread {spread:.1f}")
            best = min(results)
            setting[:] = best[1] if results else before
            print(f"{name:<10} best {best[1]} {best[0]:.1f} us")
            found.append({"what": name, "results": results})
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
