"""What choosing costs at the real vocabulary: `python -m tests.bench.gpu_sampling [out.json]`

First the kernels alone, in a captured graph; then steps of an engine with the released shapes and 4 layers, greedy
against sampled, so that a difference is what a selection adds to a step. Checked against the definition before.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from carousel_kernels import sampling
from carousel_kernels.head import triton as head
from carousel_kernels.sampling import triton as kernels
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.protocol import SamplerParams

from tests.bench.gpu_random_model import build, released
from tests.bench.graph_time import graph_us
from tests.model.sampling_cases import real_case

VOCAB, VALID, CONTEXT, ROWS = 248_320, 248_077, 8192, 3000
TARGET_US = 100
DEVICE = torch.device("cuda")
EVERY = {"top_k": 40, "top_p": 0.95, "min_p": 0.02, "repetition": 1.1, "frequency": 0.2, "presence": 0.1, "uses": 7}
KINDS: dict[str, dict[str, float]] = {
    "temperature": {},
    "top-k": {"top_k": 40},
    "top-p": {"top_p": 0.95},
    "every feature": EVERY,
}


def alone() -> list[dict[str, Any]]:
    """us of the kernels of one selection by bits a pass, and of the argmax and the torch operations they replace."""
    draw = torch.Generator(DEVICE).manual_seed(1)
    logits = torch.randn(2, VOCAB, device=DEVICE, generator=draw) * 3
    tokens = torch.randint(0, VALID, (2, CONTEXT), device=DEVICE, generator=draw)
    control, out = torch.tensor([1, ROWS - 1], device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    tiles = head.tiles(VOCAB)
    best = torch.zeros(1, tiles, device=DEVICE), torch.zeros(1, tiles, dtype=torch.int32, device=DEVICE)
    found = []

    def time_it(what: str, run: Callable[[], None]) -> None:
        us, spread = graph_us(run, repeats=21)
        found.append({"what": what, "us": us, "spread": spread / us})
        print(f"{what:<34} {us:8.1f} us  spread {100 * spread / us:.0f}%")

    time_it("argmax", lambda: head.best(logits[1:], VALID, out, best))
    for bits in (3, 4, 5, 6):
        work = kernels.Work.empty(VOCAB, DEVICE, bits=bits)
        work.mask.fill_(1)
        for kind, settings in KINDS.items():
            numbers = {"temperature": 1.0, "top_p": 1.0, "uniform": 0.3, "repetition": 1.0} | settings
            params = torch.tensor([numbers.get(name, 0.0) for name in kernels.PARAMS], dtype=torch.float64).to(DEVICE)

            def run(params: torch.Tensor = params, work: kernels.Work = work) -> None:
                kernels.choose(control, params, tokens, logits, work, out, valid=VALID)

            time_it(f"{kind}, {bits} bits a pass", run)
    counts = torch.bincount(tokens[1, :ROWS], minlength=VOCAB).int()

    def torch_operations() -> None:
        x = sampling.adjust(logits[1], VALID, counts=counts, repetition=1.1, frequency=0.2, presence=0.1)
        int(sampling.choose(x, temperature=1.0, top_k=40, top_p=0.95, min_p=0.02, uniform=0.3))

    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch_operations()
        times.append(1e6 * (time.perf_counter() - begin))
    found.append({"what": "the definition in torch operations", "us": median(times[2:])})
    print(f"{'the definition in torch operations':<34} {median(times[2:]):8.1f} us")
    return found


def steps(engine: GpuEngine) -> list[dict[str, Any]]:
    """us of a step, and what is more than a greedy one's."""
    seq = engine.create(CONTEXT)
    engine.prefill(seq, torch.randint(0, VALID, (ROWS,), generator=torch.Generator().manual_seed(3)).tolist())
    counts, bias = torch.zeros(VOCAB, dtype=torch.int32), torch.randn(VOCAB)
    mask = torch.rand(VOCAB) < 0.5
    shaped = {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "uniform": 0.3}
    every = shaped | {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1, "counts": counts}
    kinds = {
        "greedy": SamplerParams(),
        "temperature": SamplerParams(temperature=1.0, uniform=0.3),
        "top-k, top-p, min-p": SamplerParams(**shaped),
        "the same, penalties, bias": SamplerParams(**every, bias=bias),
        "the same under a mask, two graphs": SamplerParams(**every, bias=bias, mask=mask),
        "greedy with 20 log probabilities": SamplerParams(top_logprobs=20),
    }
    samples: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(9):  # kinds in turn, so that a slower minute slows them all
        for kind, params in kinds.items():
            token = engine.select(seq, params).token
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(40):
                token = engine.step(seq, token, params, 0)[0].token
            samples[kind].append(1e6 * (time.perf_counter() - begin) / 40)
    found = []
    for kind, times in samples.items():
        us, greedy = median(times[1:]), median(samples["greedy"][1:])
        found.append({"what": kind, "us": us, "added": us - greedy, "low": min(times[1:]), "high": max(times[1:])})
        print(f"step, {kind:<34} {us:8.1f} us ({min(times[1:]):.1f} to {max(times[1:]):.1f}), added {us - greedy:6.1f}")
    engine.release(seq)
    return found


def main() -> None:
    work = kernels.Work.empty(VOCAB, DEVICE)
    cases = [real_case(seed, VOCAB, VALID) for seed in range(20)]
    wrong = sum(case.found(work) != case.wanted() for case in cases)
    print(f"{len(cases) - wrong} of {len(cases)} selections are the definition's")
    kernels_found = alone()
    with torch.inference_mode():
        steps_found = steps(build(released(4), context=CONTEXT, drafts=0).engine)
    added = next(s["added"] for s in steps_found if s["what"] == "the same, penalties, bias")
    print(f"a selection with every feature adds {added:.1f} us to a step; target {TARGET_US}")
    if len(sys.argv) > 1:
        result = {"device": torch.cuda.get_device_name(), "kernels": kernels_found, "steps": steps_found}
        Path(sys.argv[1]).write_text(json.dumps(result | {"wrong": wrong}, indent=1))


if __name__ == "__main__":
    main()
