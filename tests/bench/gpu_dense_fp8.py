"""FP8 projections against the same model's in bf16. `python -m tests.bench.gpu_dense_fp8 out.json [LAYERS]`

The released shapes (48 layers unless told), random weights, every expert resident and shared by both engines. First the
projections alone: their relative error in weights, and many rows through one. Then decode and prefill, the engines
taking turns; then the logits of both behind the same random tokens, teacher-forced.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from carousel_kernels.fp8 import dequantize
from carousel_kernels.linear.triton import many_rows
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.protocol import SamplerParams
from torch import Tensor

from tests.bench.gpu_decode import commit, runs
from tests.bench.gpu_random_model import DEVICE, Bench, build, dense_fp8, released

GREEDY = SamplerParams()
PROMPT, STEPS, LONG = 512, 300, 4096


def tokens(count: int, seed: int) -> list[int]:
    """Random ids."""
    return torch.randint(0, 248000, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def projections(bench: Bench, fp8: GpuEngine) -> dict[str, Any]:
    """Of the first layer: relative error of the weights, and us of 1,024 and 4,096 rows in bf16 and FP8."""
    stored, block = bench.weights.layers[0].block, fp8.forward.weights.layers[0].block
    found: dict[str, Any] = {}
    for name in ("project", "out"):
        weight, values, scale = getattr(stored, name), getattr(block, name), getattr(block, f"{name}_scale")
        error = float((dequantize(values, scale) - weight.float()).norm() / weight.float().norm())
        found[name] = {"shape": list(weight.shape), "error": error}
        for rows in (1024, 4096):
            x = torch.randn(rows, weight.shape[1], device=DEVICE, dtype=torch.bfloat16)
            found[name][rows] = (
                timed(lambda x=x, w=weight: many_rows(x, w)),
                timed(lambda x=x, w=values, s=scale: many_rows(x, w, scale=s)),
            )
    return found


def timed(call: Any, times: int = 20) -> float:
    """us a call, after one that compiles."""
    call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    return 1000 * start.elapsed_time(end) / times


def prefill(engine: GpuEngine, prompt: list[int]) -> float:
    """Tokens a second, the better of two after one that compiles."""
    best = float("inf")
    for _ in range(3):
        seq = engine.create(8192)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        engine.prefill(seq, prompt)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
        engine.release(seq)
    return len(prompt) / best


def difference(stored: GpuEngine, fp8: GpuEngine) -> dict[str, float]:
    """Of the logits behind a prompt, and in steps behind it; both engines are fed the same random tokens."""
    seqs, engines = [], (stored, fp8)
    for engine in engines:
        seqs.append(engine.create(PROMPT + STEPS))
        engine.prefill(seqs[-1], tokens(PROMPT, 5))
    valid = stored.info.valid_tokens

    def logits() -> list[Tensor]:
        return [e.state.logits[s.slot, :valid].double() for e, s in zip(engines, seqs, strict=True)]

    def relative(wanted: Tensor, found: Tensor) -> float:
        return float((found - wanted).norm() / wanted.norm())

    found = {"prefill": relative(*logits())}
    errors, same, clear, clearly = [], 0, 0, 0
    for token in tokens(STEPS, 6):
        for engine, seq in zip(engines, seqs, strict=True):
            engine.step(seq, token, GREEDY, 0)
        wanted, got = logits()
        errors.append(relative(wanted, got))
        agrees = int(wanted.argmax()) == int(got.argmax())
        top = wanted.topk(2).values
        apart = float(top[0] - top[1]) > 0.1 * float(wanted.std())
        same, clear, clearly = same + agrees, clear + apart, clearly + (apart and agrees)
    for engine, seq in zip(engines, seqs, strict=True):
        engine.release(seq)
    found |= {"median": median(errors), "largest": max(errors), "steps": STEPS, "same": same}
    return found | {"clear": clear, "same_where_clear": clearly}


def main() -> None:
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else 48
    begin = time.perf_counter()
    bench = build(released(layers), drafts=0, context=8192, table_bytes=2**29)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    fp8 = dense_fp8(bench)
    print(f"{layers} layers built in {time.perf_counter() - begin:.1f} s, {before / 2**30:.1f} GiB, both "
          f"{torch.cuda.memory_allocated() / 2**30:.1f}")  # fmt: skip
    engines = {"bf16": bench.engine, "fp8": fp8}
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "commit": commit(), "torch": torch.__version__}
    result["layers"] = layers
    with torch.inference_mode():
        result["projections"] = projections(bench, fp8)
        for name, one in result["projections"].items():
            print(f"{name} {one['shape']}: weights off by {one['error']:.2%}; rows: us in bf16, in FP8: "
                  f"1024: {one[1024]}, 4096: {one[4096]}")  # fmt: skip
        result["difference"] = d = difference(bench.engine, fp8)
        print(f"logits off by {d['prefill']:.3f} behind {PROMPT} rows, in {STEPS} steps median {d['median']:.3f}, "
              f"largest {d['largest']:.3f}; same best token in {d['same']}, of {d['clear']} with a clear one in "
              f"{d['same_where_clear']}")  # fmt: skip
        seqs = {name: engine.create(4096) for name, engine in engines.items()}
        for name, engine in engines.items():
            engine.prefill(seqs[name], tokens(PROMPT, 3))
        result["decode"] = {name: [] for name in engines}
        for name in ("bf16", "fp8", "bf16", "fp8"):
            r = runs(engines[name], [seqs[name]], 64)
            result["decode"][name].append(r)
            print(f"decode, {name}: {r['ms']:.3f} ms a token ({r['low']:.3f} to {r['high']:.3f})")
        result["prefill"] = {name: prefill(engine, tokens(LONG, 7)) for name, engine in engines.items()}
        print("prefill of 4096, tok/s: " + ", ".join(f"{n} {r:.0f}" for n, r in result["prefill"].items()))
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
