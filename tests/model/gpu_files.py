"""Checkpoints from files through the GPU engine, against the CPU engine with the same files. Runs on any device."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from carousel_server.engine import load
from carousel_server.engine.weights import Attention, Block, Delta, Packer

from tests.model.engine_kit import GREEDY, kept_logits, random_ids
from tests.model.oracle.make_fp8 import make_fp8, quantize, widen
from tests.model.oracle.make_tiny import make_tiny


def released_layout(folder: Path, *, layers: int = 4) -> Path:
    """A tiny checkpoint as FP8 releases are laid out: experts and n-gram table FP8, the rest bf16.

    The table's one scale is 4 bytes, so that behind it nothing begins at a multiple of 16.
    """
    found, _ = make_fp8(make_tiny(folder / "bf16", layers=layers, dtype="bfloat16"), folder / "fp8", folder / "wide")
    config = json.loads((found / "config.json").read_text())
    (found / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    return found


class Rounded(Packer):
    """The CPU engine's weights, the projections of DeltaNet and attention rounded to FP8 by the oracle's definition."""

    def _delta(self, p: str) -> Delta:
        return self._rounded(super()._delta(p))

    def _attention(self, p: str) -> Attention:
        return self._rounded(super()._attention(p))

    def _rounded(self, block: Block) -> Block:
        project, out = (self._fastest(widen(*quantize(matrix))) for matrix in (block.project, block.out))
        return replace(block, project=project, out=out)


def compare(folder: Path, gpu: Any, *, rows: int, steps: int) -> float:
    """The largest relative error of the logits after a prompt of `rows` and in `steps` steps, teacher-forced."""
    cpu = load(str(folder), context_tokens=gpu.info.context_tokens, slots=1, drafts=0, threads=1)
    tokens, worst = random_ids(5, rows + steps), 0.0
    a, b = gpu.create(rows + steps), cpu.create(rows + steps)
    gpu.prefill(a, tokens[:rows])
    cpu.prefill(b, tokens[:rows])
    for token in [*tokens[rows:], None]:
        found, wanted = gpu.state.logits[a.slot].cpu(), kept_logits(cpu, b)
        assert not bool(torch.isnan(found).any())
        worst = max(worst, float((found - wanted).norm() / wanted.norm()))
        if token is not None:
            gpu.step(a, token, GREEDY, 0)
            cpu.step(b, token, GREEDY, 0)
    gpu.release(a)
    cpu.release(b)
    return worst
