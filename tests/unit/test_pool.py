"""The expert pool over host memory that is a file's map: who is in which slot, and what a prompt reads. No kernels."""

import mmap
import threading
import time
from collections.abc import Callable

import pytest
import torch
from carousel_server.engine import EMBEDDED, expert_loading
from carousel_server.engine.config import read_config
from carousel_server.engine.expert_loading import ExpertLoading
from carousel_server.engine.pool import ExpertPool, HostExperts
from carousel_server.engine.protocol import EngineError, StepStats
from torch import Tensor

CONFIG = read_config(EMBEDDED)  # 16 experts, 8 layers
PART, EACH, SLOTS = 256 * 64, 3 * 256 * 64, 5
CPU = torch.device("cpu")


def mapped(layers: int, *, gap: int) -> list[HostExperts]:
    """Experts of every layer in one map, each part a tensor of its own as a file's are; `gap` bytes between parts."""
    area = mmap.mmap(-1, layers * CONFIG.experts * 3 * (PART + gap))
    whole = torch.frombuffer(area, dtype=torch.uint8)
    whole.copy_(torch.randint(0, 120, whole.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1)))
    parts = [
        torch.frombuffer(area, dtype=torch.float8_e4m3fn, count=PART, offset=i * (PART + gap)).view(64, 256)
        for i in range(layers * CONFIG.experts * 3)
    ]
    experts = [(parts[i], parts[i + 1], parts[i + 2].view(256, 64)) for i in range(0, len(parts), 3)]
    count = CONFIG.experts
    return [HostExperts(experts[i : i + count], None) for i in range(0, len(experts), count)]


def filled(host: list[HostExperts]) -> ExpertPool:
    found = ExpertPool(CONFIG, len(host), SLOTS, torch.float8_e4m3fn, CPU)
    for layer, experts in enumerate(host):
        found.fill(layer, experts)
    return found


def bytes_of(experts: HostExperts, e: int) -> Tensor:
    return torch.cat([part.reshape(-1).view(torch.uint8) for part in experts.parts[e]])


def slot(pool: ExpertPool, layer: int, number: int) -> Tensor:
    """What kernels read for a slot number of a layer, which counts from the layer's first slot."""
    return pool.memory[layer * SLOTS + number].view(torch.uint8)


@pytest.mark.parametrize("gap", [0, 4])
def test_every_layer_of_a_prompt_finds_each_expert_in_its_slot_or_in_the_stream_area(gap: int) -> None:
    host = mapped(len(CONFIG.layers), gap=gap)
    pool = filled(host)
    pool.tables[3, 2], pool.tables[3, 9] = -1, 2  # a step took expert 2's slot for expert 9
    slot(pool, 3, 2).copy_(bytes_of(host[3], 9))
    for prompt in range(2):
        for layer, experts in enumerate(host):
            numbers = pool.stream(layer).tolist()
            own = {e: n for e, n in enumerate(numbers) if n < SLOTS}
            assert set(own) == ({0, 1, 3, 4, 9} if layer == 3 else {0, 1, 2, 3, 4}), (prompt, layer)
            assert len(set(numbers)) == CONFIG.experts
            for e, number in enumerate(numbers):
                assert torch.equal(slot(pool, layer, number), bytes_of(experts, e)), (prompt, layer, e)


def test_a_pool_tells_the_kernels_where_the_others_lie() -> None:
    host = mapped(2, gap=0)
    pool = filled(host)
    for layer, experts in enumerate(host):
        assert pool.source[layer].tolist() == [[p.data_ptr() for p in parts] for parts in experts.parts]
        assert pool.tables[layer].tolist() == [0, 1, 2, 3, 4] + [-1] * 11
        residency = pool.residency[layer]
        assert residency is not None
        assert residency.owner.tolist() == [0, 1, 2, 3, 4]
        # staging begins behind the slots of all layers, counted from this layer's first slot
        assert layer * SLOTS + residency.stage == 2 * SLOTS


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def resident(layers: int) -> ExpertPool:
    return ExpertPool(CONFIG, layers, CONFIG.experts, torch.float8_e4m3fn, CPU)


def test_experts_arrive_layer_by_layer_while_the_first_ones_are_used_and_nothing_of_the_files_is_kept() -> None:
    host, pool = mapped(3, gap=4), resident(3)
    stats, more = StepStats(), threading.Event()

    def experts(layer: int) -> HostExperts:
        assert layer < 2 or more.wait(10)
        return host[layer]

    pool.loading = ExpertLoading(pool, experts, stats)
    pool.loading.start()
    for layer in (0, 1):
        assert pool.stream(layer).tolist() == list(range(CONFIG.experts))
        for e in range(CONFIG.experts):
            found = pool.memory[layer * CONFIG.experts + e].view(torch.uint8)
            assert torch.equal(found, bytes_of(host[layer], e)), (layer, e)
    assert not pool.memory[2 * CONFIG.experts :].view(torch.uint8).any()
    until(lambda: stats.loading.endswith("experts of layer 3 of 3"))
    assert stats.loaded == pytest.approx(0.3 + 0.7 * 2 / 3)
    more.set()
    pool.complete()
    assert torch.equal(pool.memory[-1].view(torch.uint8), bytes_of(host[2], CONFIG.experts - 1))
    assert pool.resident
    assert not pool._held
    until(lambda: stats.loaded == 1)
    assert (stats.loaded, stats.loading) == (1.0, "")


def test_a_layer_of_more_experts_than_the_buffers_hold_passes_them_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_loading, "loading_batch", lambda experts, expert_bytes: 3)
    host, pool = mapped(1, gap=0), resident(1)
    pool.loading = ExpertLoading(pool, host.__getitem__, StepStats())
    pool.loading.start()
    pool.complete()
    for e in range(CONFIG.experts):
        assert torch.equal(pool.memory[e].view(torch.uint8), bytes_of(host[0], e)), e


def test_experts_that_cannot_be_read_end_the_process_whoever_waits_for_them() -> None:
    def experts(layer: int) -> HostExperts:
        raise OSError("the volume is gone")

    pool = resident(2)
    pool.loading = ExpertLoading(pool, experts, StepStats())
    pool.loading.start()
    for wait in (lambda: pool.stream(1), pool.complete):
        with pytest.raises(EngineError, match="experts cannot be loaded: the volume is gone") as caught:
            wait()
        assert caught.value.fatal
