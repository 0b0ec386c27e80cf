"""Decode of one chat on the GPU at the real shapes, all experts resident. `python -m tests.bench.gpu_decode [out.json]`

Calls the engine's step as the worker does: token in, selection and readback included. With `http` behind the file's
name, gpu_http.py's figures of the same model follow.
"""

import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.protocol import SamplerParams

from tests.bench import gpu_http
from tests.bench.device_events import device_events
from tests.bench.gpu_check import check
from tests.bench.gpu_random_model import build, released
from tests.model.engine_kit import eager

GREEDY = SamplerParams()
FLOOR_MS = 2.6
PROMPT = 4096
KEPT = 2.3  # tokens of a step with 2 drafts


def decode(engine: GpuEngine, seqs: list[Any], steps: int, drafts: int = 0) -> float:
    """ms a token over `steps` steps that go round the sequences."""
    tokens = [engine.select(s, GREEDY).token for s in seqs]
    torch.cuda.synchronize()
    begin, made = time.perf_counter(), 0
    for i in range(steps):
        at = i % len(seqs)
        out = engine.step(seqs[at], tokens[at], GREEDY, drafts)
        tokens[at] = out[-1].token
        made += len(out)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin) / made


def runs(engine: GpuEngine, seqs: list[Any], steps: int, count: int = 6) -> dict[str, float]:
    """Median and spread of at least five runs; the first warms up."""
    times = [decode(engine, seqs, steps) for _ in range(count)][1:]
    return {"ms": median(times), "low": min(times), "high": max(times), "runs": len(times)}


def profile(engine: GpuEngine, seq: Any, drafts: int) -> list[tuple[str, int, float, float]]:
    """Kernel, calls, us of the step and us of the kernels, for one step by time. Kernels overlap: of the step's time a
    kernel has what passes between the end of the one that ended before it and its own."""
    token = engine.select(seq, GREEDY).token
    events = device_events(lambda: engine.step(seq, token, GREEDY, drafts))
    last, rows = min(e.time_range.start for e in events), {}
    for e in sorted(events, key=lambda e: e.time_range.end):
        count, wall, busy = rows.get(e.name, (0, 0.0, 0.0))
        rows[e.name] = count + 1, wall + e.time_range.end - last, busy + e.time_range.end - e.time_range.start
        last = e.time_range.end
    return sorted(((name, *row) for name, row in rows.items()), key=lambda r: -r[2])


def commit() -> str:
    """The commit that is measured, if git is there."""
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> None:
    begin = time.perf_counter()
    errors = check()
    print(f"8 layers against the fp32 definition: {errors}, {time.perf_counter() - begin:.1f} s")
    gc.collect()
    torch.cuda.empty_cache()
    begin = time.perf_counter()
    bench = build(released(), saved_bytes=3 * 2**30 if "http" in sys.argv[2:] else 0)
    torch.cuda.synchronize()
    print(f"built in {time.perf_counter() - begin:.1f} s, {torch.cuda.memory_allocated() / 2**30:.1f} GiB on the GPU")
    engine = bench.engine
    prompt = torch.randint(0, 248000, (512,), generator=torch.Generator().manual_seed(3)).tolist()
    result: dict[str, Any] = {
        "errors": errors,
        "device": torch.cuda.get_device_name(),
        "commit": commit(),
        "torch": torch.__version__,
    }
    with torch.inference_mode():
        seqs = [engine.create(8192) for _ in range(2)]
        for s in seqs:
            engine.prefill(s, prompt)
        one = runs(engine, seqs[:1], 64)
        two = runs(engine, seqs, 64)
        for name, r in (("one chat", one), ("two chats in slots", two)):
            print(
                f"decode, {name}: {r['ms']:.3f} ms a token ({r['low']:.3f} to {r['high']:.3f}), floor {FLOOR_MS}, "
                f"ratio {r['ms'] / FLOOR_MS:.2f}"
            )
        print(f"two chats run at {one['ms'] / two['ms']:.3f} of one chat's rate")
        result |= {"one": one, "two": two, "floor_ms": FLOOR_MS}
        result["profiles"] = []
        for drafts in sorted({0, engine.info.max_drafts}):
            rows = profile(engine, eager(seqs[0]), drafts)
            total = sum(r[2] for r in rows)
            print(f"a step with {drafts} drafts, profiled: {total:.0f} us, {sum(r[3] for r in rows):.0f} in kernels")
            for name, count, us, busy in rows[:16]:
                each = f"{us / count:7.2f} ({busy / count:.2f})"
                print(f"  {us:9.1f} us {100 * us / total:5.1f}% {count:5d} x {each}  {name}")
            result["profiles"].append({"drafts": drafts, "kernels": rows})
        engine.release(seqs[1])
        times = []
        for _ in range(6):
            seq = engine.create(8192)
            many = torch.randint(0, 248000, (PROMPT,)).tolist()
            torch.cuda.synchronize()
            at = time.perf_counter()
            engine.prefill(seq, many)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - at)
            engine.release(seq)
        rates = sorted(PROMPT / t for t in times[1:])
        print(f"prefill of {PROMPT}: {median(rates):.0f} tok/s ({rates[0]:.0f} to {rates[-1]:.0f}, {len(rates)} runs)")
        result["prefill"] = {"rows": PROMPT, "seconds": times}
        seq, with_drafts = seqs[0], []
        for width in range(1, engine.info.max_drafts + 1):
            times = []
            for _ in range(6):
                eager(seq)  # again: after 150 rejections two drafts seem worth exactly as much as one, which is taken
                token = engine.select(seq, GREEDY).token
                torch.cuda.synchronize()
                at = time.perf_counter()
                for _ in range(24):
                    token = engine.step(seq, token, GREEDY, width)[-1].token
                torch.cuda.synchronize()
                times.append(1000 * (time.perf_counter() - at) / 24)
            step = median(times[1:])
            with_drafts.append((width, step, min(times[1:]), max(times[1:])))
            print(f"a step with {width} drafts: {step:.3f} ms ({min(times[1:]):.3f} to {max(times[1:]):.3f})")
        kept = one["ms"] * KEPT / with_drafts[-1][1]
        print(
            f"{KEPT} of {width + 1} tokens kept a step, imposed by division, would be {kept:.2f} times the rate without"
        )
        result |= {"steps_with_drafts": with_drafts, "imposed": {"kept": KEPT, "times": kept}}
        engine.release(seq)
    if "http" in sys.argv[2:]:
        result["http"] = gpu_http.measure(engine)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
