"""A short life of the GPU engine for compute-sanitizer: prompts, missed experts, drafts, a save and a restore.

    python -m tests.bench.gpu_sanitized                       runs it, graphs off and on
    python -m tests.bench.gpu_sanitized --tool memcheck ...   the same under the sanitizer's tools, one after the other

With graphs off torch's allocator is told not to cache (PYTORCH_NO_CUDA_MEMORY_CACHING=1), so that each tensor is an
allocation of its own and an overrun is outside it; a capture needs the cache. `--device cpu` tries it interpreted.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from carousel_server.engine import EMBEDDED, gpu_start
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.protocol import SamplerParams

from tests.model.engine_kit import GREEDY, eager, random_ids
from tests.model.gpu_files import released_layout

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 9  # exit code of the sanitizer for errors
SAMPLED = SamplerParams(temperature=0.9, top_k=20, top_p=0.9, uniform=0.4, top_logprobs=3)


def live(engine: GpuEngine, prompt: list[int], steps: int) -> Iterator[str]:
    """What was run, told after each part. Raises where logits are not numbers."""
    seq = engine.create(engine.info.context_tokens)
    engine.prefill(seq, prompt)
    token = engine.select(seq, GREEDY).token
    yield f"a prompt of {len(prompt)} tokens"
    accepted = engine.stats.drafts_accepted
    if engine.info.max_drafts:
        for _ in range(steps):
            token = engine.step(eager(seq), token, GREEDY, engine.info.max_drafts)[-1].token
        yield f"{steps} verified steps, {engine.stats.drafts_accepted - accepted} drafts accepted"
    engine.suspend(seq)
    engine.resume(seq)
    yield "a save and a restore"
    for _ in range(steps):
        token = engine.step(seq, token, GREEDY, 0)[-1].token
        token = engine.step(seq, token, SAMPLED, 0)[-1].token
    yield f"{2 * steps} plain steps, half of them sampled, up to {seq.length} tokens"
    if not engine.pool.resident:
        selected, missed = engine.pool.counts().sum(0).tolist()
        if not missed:
            raise SystemExit("no expert was missed")
        yield f"{missed} of {selected} experts missed"
    engine.release(seq)


def run(device: torch.device, graphs: bool) -> None:
    """Every engine once: bf16 experts resident and pooled, beyond the budget of dense attention; FP8 experts pooled."""
    small = device.type == "cpu"
    tell: Callable[[str], None] = lambda what: print(f"  {what}", flush=True)  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        fp8 = released_layout(Path(folder))
        engines: list[tuple[str, Path, int | None, tuple[int, ...], int]] = [
            ("FP8 experts, a pool of few", fp8, 1, (9,) if small else (70, 3), 490)
        ]
        if not small:
            engines.append(("bf16 experts, a pool of few", EMBEDDED, 1, (70,), 3000))
            engines.append(("bf16 experts, all resident", EMBEDDED, None, (258,), 3000))
        for name, model, pool, prompts, below in engines:
            began = time.perf_counter()
            print(f"{name}, graphs {'on' if graphs else 'off'}", flush=True)
            engine = gpu_start.start(
                model,
                context_tokens=320 if not small else 64,
                slots=2,
                drafts=2,
                expert_pool_bytes=pool,
                prefill_rows=64,
                device=device,
                graphs=graphs,
            )
            for rows in prompts:
                for what in live(engine, random_ids(rows, rows, below), 1 if small else 3):
                    tell(what)
            print(f"  {time.perf_counter() - began:.1f} s", flush=True)


def child(tool: str | None, graphs: bool) -> int:
    """This program in a process of its own, under a tool of the sanitizer if one is named."""
    command = [sys.executable, "-m", "tests.bench.gpu_sanitized", "--graphs", "on" if graphs else "off"]
    if tool is not None:
        sanitizer = ["compute-sanitizer", "--tool", tool, "--target-processes", "application-only"]
        command = [*sanitizer, "--error-exitcode", str(FOUND), "--print-limit", "20", *command]
    caching = {} if graphs else {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    print(f"== {tool or 'no sanitizer'}, graphs {'on' if graphs else 'off'}", flush=True)
    began = time.perf_counter()
    code = subprocess.run(command, env={**os.environ, **caching}, check=False).returncode
    print(f"== exit code {code} after {time.perf_counter() - began:.0f} s", flush=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", nargs="+", choices=TOOLS, default=[], help="run under these, one after the other")
    parser.add_argument("--graphs", choices=("on", "off"), help="only these, in this process")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    if options.device == "cpu" or options.graphs:
        run(torch.device(options.device), graphs=options.graphs == "on")
        return 0
    codes = {(tool, on): child(tool, on) for tool in (options.tool or [None]) for on in (False, True)}
    return max(codes.values())


if __name__ == "__main__":
    sys.exit(main())
