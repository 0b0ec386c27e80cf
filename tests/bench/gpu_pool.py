"""Decode and prefill with an expert pool of 24 GiB at the real shapes. `python -m tests.bench.gpu_pool RESIDENT_MS
[out.json]`

RESIDENT_MS is what gpu_decode measured with every expert resident. Four layers of experts lie in registered host memory
and serve all layers in turn (aliased). Tokens are drawn at random, which is the worst case for routing.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from carousel_server.engine.protocol import SamplerParams

from tests.bench.gpu_decode import commit
from tests.bench.gpu_random_model import build, released

GREEDY, GBS = SamplerParams(), 51.0


def main() -> None:
    resident = float(sys.argv[1])
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "commit": commit(),
        "resident_ms": resident,
        "rows": [],
    }
    begin = time.perf_counter()
    skew = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0
    bench = build(released(), pool_bytes=24 * 2**30, skew=skew, drafts=0, table_bytes=2**29, context=8192)
    engine, pool = bench.engine, bench.engine.pool
    print(f"built in {time.perf_counter() - begin:.1f} s: {pool.slots} slots of 512 a layer, skew {skew}")
    with torch.inference_mode():
        draw = torch.Generator().manual_seed(11)
        seq = engine.create(8192)
        engine.prefill(seq, torch.randint(0, 248000, (256,), generator=draw).tolist())
        for _ in range(64):
            engine.step(seq, int(torch.randint(0, 248000, (1,), generator=draw)), GREEDY, 0)
        for run in range(6):
            tokens = torch.randint(0, 248000, (32,), generator=draw).tolist()
            before = pool.counts().sum(0)
            torch.cuda.synchronize()
            at = time.perf_counter()
            for token in tokens:
                engine.step(seq, token, GREEDY, 0)
            torch.cuda.synchronize()
            ms = 1000 * (time.perf_counter() - at) / len(tokens)
            selected, missed = ((pool.counts().sum(0) - before) / len(tokens)).tolist()
            expected = resident + missed * pool.expert_bytes / GBS / 1e6
            result["rows"].append(
                {"ms": ms, "selected": selected, "missed": missed, "expected": expected, "ratio": ms / expected}
            )
            print(
                f"run {run}: {ms:.2f} ms, {missed:.0f} of {selected:.0f} experts missed, "
                f"resident + misses / 51 GB/s = {expected:.2f} ms, ratio {ms / expected:.3f}"
            )
        result["ratio"] = median(r["ratio"] for r in result["rows"][1:])
        times = []
        for _ in range(3):
            engine.release(seq)
            seq = engine.create(8192)
            tokens = torch.randint(0, 248000, (4096,), generator=draw).tolist()
            torch.cuda.synchronize()
            at = time.perf_counter()
            engine.prefill(seq, tokens)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - at)
        missing = (512 - pool.slots) * 48 * pool.expert_bytes / 55e9
        print(f"prefill 4096: {times} s, experts at 55 GB/s {missing:.2f} s, ratio {min(times[1:]) / missing:.3f}")
        result["prefill"] = {"seconds": times, "floor": missing}
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
