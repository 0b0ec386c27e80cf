"""Experts from a mapped file, in the page cache, to the GPU at the real shapes. `python -m tests.bench.gpu_loading
[out.json] [folder]`

Four layers of experts (10 GB) lie in a file in `folder` and serve all layers in turn, each through a map of its own,
whose pages nobody has touched. Beside it: the same bytes from maps that are registered and copied where they lie.
"""

import json
import mmap
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import torch
from carousel_server.engine import expert_loading
from carousel_server.engine.expert_loading import ExpertLoading
from carousel_server.engine.host_memory import MAPPED, READ_ONLY
from carousel_server.engine.pool import ExpertPool, HostExperts
from carousel_server.engine.protocol import StepStats
from torch import Tensor

from tests.bench.gpu_decode import commit
from tests.bench.gpu_random_model import DEVICE, FP8, released

LAYERS, FILED, RUNS, GBS = 24, 4, 6, 55.0
warnings.filterwarnings("ignore", message=".*not writable.*")


def file(path: Path, layer_bytes: int) -> None:
    """Random bytes, never zeros."""
    draw = torch.Generator().manual_seed(2)
    piece = torch.randint(0, 120, (layer_bytes // 64,), dtype=torch.uint8, generator=draw).numpy().tobytes()
    with path.open("wb") as out:
        for _ in range(FILED * 64):
            out.write(piece)


def mapped(path: Path, layer: int, layer_bytes: int) -> Tensor:
    with path.open("rb") as opened:
        area = mmap.mmap(
            opened.fileno(), layer_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=layer % FILED * layer_bytes
        )
    return torch.frombuffer(area, dtype=torch.uint8)


def experts(whole: Tensor, count: int) -> HostExperts:
    part = whole.numel() // count // 3
    pieces = whole.view(FP8).view(count, 3, part).unbind(0)
    return HostExperts([(p[0], p[1], p[2]) for p in pieces], None)


def registered(path: Path, pool: ExpertPool, layer_bytes: int) -> dict[str, float]:
    """Seconds of registering, copying and unregistering the layers of the file once."""
    driver, spent = torch.cuda.cudart(), {"register": 0.0, "copy": 0.0, "unregister": 0.0}  # type: ignore[no-untyped-call]
    for layer in range(FILED):
        whole = mapped(path, layer, layer_bytes)
        at = time.perf_counter()
        error = int(driver.cudaHostRegister(whole.data_ptr(), layer_bytes, MAPPED | READ_ONLY))
        if error:
            return {"error": float(error)}
        spent["register"] += time.perf_counter() - at
        at = time.perf_counter()
        pool.slabs[layer].slots.view(torch.uint8).view(-1).copy_(whole, non_blocking=True)
        torch.cuda.synchronize()
        spent["copy"] += time.perf_counter() - at
        at = time.perf_counter()
        driver.cudaHostUnregister(whole.data_ptr())
        spent["unregister"] += time.perf_counter() - at
    return spent


def main() -> None:
    c = released()
    pool = ExpertPool(c, LAYERS, c.experts, FP8, DEVICE)
    layer_bytes = c.experts * pool.expert_bytes
    moved = LAYERS * layer_bytes
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "commit": commit(), "bytes": moved, "rows": []}
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        path = Path(folder) / "experts"
        file(path, layer_bytes)
        for threads in (4, 8, 16):
            expert_loading.THREADS = threads
            first, every = [], []
            for _ in range(RUNS):
                pool.memory.zero_()
                torch.cuda.synchronize()
                at = time.perf_counter()
                loading = ExpertLoading(pool, lambda i: experts(mapped(path, i, layer_bytes), c.experts), StepStats())
                loading.start()
                loading.wait(0)
                torch.cuda.synchronize()
                first.append(time.perf_counter() - at)
                for layer in range(LAYERS):
                    loading.wait(layer)
                torch.cuda.synchronize()
                every.append(time.perf_counter() - at)
                last = mapped(path, LAYERS - 1, layer_bytes)[-pool.expert_bytes :].to(DEVICE)
                assert torch.equal(pool.memory[-1].view(torch.uint8), last), "the last expert is another one"
                time.sleep(0.5)  # the buffers are given back
            seconds = median(every[1:])
            rate = moved / seconds / 1e9
            print(
                f"{threads} threads: {LAYERS} layers, {moved / 2**30:.1f} GiB in {seconds:.2f} s ({min(every[1:]):.2f} "
                f"to {max(every[1:]):.2f}, {RUNS - 1} runs), {rate:.1f} GB/s of {GBS}, ratio {GBS / rate:.2f}; the "
                f"first layer after {median(first[1:]):.3f} s, all 49 after {seconds / LAYERS * 49:.2f} s"
            )
            result["rows"].append({"threads": threads, "seconds": every, "first": first, "gbs": rate})
        result["registered"] = registered(path, pool, layer_bytes)
        print(f"{FILED * layer_bytes / 2**30:.1f} GiB from registered maps: {result['registered']}")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
