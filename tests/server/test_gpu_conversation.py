"""The worker with the GPU engine, its kernels interpreted: the same conversation as with the CPU engine."""

from pathlib import Path
from typing import Any

import pytest
import torch
from carousel_server.engine import gpu_start, load
from carousel_server.turn import TextDelta

from tests.model.gpu_files import released_layout
from tests.server.core_kit import Bench, PlainReply


class TokenReply(PlainReply):
    """Shows each token as a number: the tiny model's are no text."""

    def feed(self, selected: Any) -> list[TextDelta]:
        self.text += f"{selected.token} "
        return [TextDelta(f"{selected.token} ")]


def conversation(engine: Any) -> list[tuple[str, int]]:
    """Text and cached tokens of two turns that share one slot, and of one that begins as the first did."""
    bench = Bench(engine=engine, reply=lambda prepared, room: TokenReply(prepared, room), chunk=64)
    turns = [bench.start(text="hi", max_tokens=2, boundaries=(8,)), bench.start(text="sea", max_tokens=2)]
    readings = [bench.finish(turn) for turn in turns]
    readings.append(bench.chat(text="his", max_tokens=2, boundaries=(8,)))
    assert engine.stats.saves > 0
    assert engine.stats.restores > 0
    assert engine.free_slots() == 1
    return [(reading.text, reading.end.usage.cached_tokens) for reading in readings]  # type: ignore[union-attr]


@pytest.mark.timeout(600)
def test_a_conversation_with_the_gpu_engine_is_the_cpu_engines(tmp_path: Path) -> None:
    folder = released_layout(tmp_path)
    cpu = load(str(folder), context_tokens=128, slots=1, drafts=0, threads=1)
    gpu = gpu_start.start(folder, context_tokens=128, slots=1, drafts=0, prefill_rows=64, device=torch.device("cpu"))
    found = conversation(gpu)
    assert found == conversation(cpu)
    assert found[2][1] == 8, "the third prompt began in the cache"
