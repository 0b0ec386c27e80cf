"""A digest of every logit of a fixed run, to compare runs: with and without CAROUSEL_PDL=0 it must be the same.

`python -m tests.bench.gpu_same`: the embedded model through prefill, plain steps and steps with drafts, and 8 layers
at the real shapes through steps with every expert resident and with a pool of 16 slots.
"""

import hashlib
from typing import Any

import torch
from carousel_server.engine import load
from carousel_server.engine.protocol import SamplerParams

from tests.bench.gpu_random_model import build, released
from tests.model.engine_kit import eager

GREEDY = SamplerParams()


def digest(engine: Any, prompt: list[int], steps: int, drafts: int) -> str:
    """Of the logits after every step."""
    seq, found = eager(engine.create(1024)), hashlib.sha256()
    engine.prefill(seq, prompt)
    token = engine.select(seq, GREEDY).token
    for _ in range(steps):
        token = engine.step(seq, token, GREEDY, drafts)[-1].token
        found.update(engine.state.logits[seq.slot].cpu().numpy().tobytes())
    engine.release(seq)
    return found.hexdigest()[:16]


def main() -> None:
    draw = torch.Generator().manual_seed(5)
    tiny = load("embedded", context_tokens=1024, slots=2, drafts=2, device="cuda")
    prompt = torch.randint(0, 3000, (300,), generator=draw).tolist()
    print("embedded", [digest(tiny, prompt, 200, drafts) for drafts in (0, 0, 2, 2)])
    for pool in (None, 8 * 16 * 4_915_200):
        with torch.inference_mode():
            bench = build(
                released(8, 200_000), context=1024, pool_bytes=pool, host_layers=1, table_bytes=2**26, drafts=0
            )
            prompt = torch.randint(0, 248000, (64,), generator=torch.Generator().manual_seed(6)).tolist()
            print("8 layers", pool, [digest(bench.engine, prompt, 60, 0) for _ in range(2)])


if __name__ == "__main__":
    main()
