"""The plan's sizes against the tensors that the engines make, on torch's meta device: shapes without memory."""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from carousel_kernels.sampling.log_probabilities import Best
from carousel_kernels.sampling.triton import Work
from carousel_server import allocations
from carousel_server.engine import EMBEDDED
from carousel_server.engine.checkpoint import Checkpoint
from carousel_server.engine.config import ModelConfig, read_config
from carousel_server.engine.gpu_forward import Buffers
from carousel_server.engine.gpu_start import RowMajor
from carousel_server.engine.gpu_state import SlotState
from carousel_server.engine.host_memory import HostMemory
from carousel_server.engine.pool import ExpertPool, slots_for
from carousel_server.engine.saved import SavedStates
from carousel_server.engine.state import StatePool
from carousel_server.engine.weights import Weights
from carousel_server.model_shape import ModelShape
from carousel_server.presets import PRESETS

from tests.bench.gpu_random_model import released
from tests.model.oracle.make_fp8 import make_fp8
from tests.model.oracle.make_tiny import make_tiny

META = torch.device("meta")
FP8 = PRESETS["qwen3.8-flash-next-fp8"]
MODELS: list[tuple[ModelShape, ModelConfig]] = [(PRESETS["tiny"], read_config(EMBEDDED)), (FP8, released())]


def nbytes(*found: Any) -> int:
    """Of every tensor inside, each counted once."""
    return sum(t.numel() * t.element_size() for t in {id(t): t for t in tensors(found)}.values())


def tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, dict):
        yield from tensors(list(found.values()))
    elif isinstance(found, list | tuple):
        for one in found:
            yield from tensors(one)
    elif is_dataclass(found):
        yield from tensors([getattr(found, f.name) for f in fields(found)])


@pytest.mark.parametrize(("shape", "config"), MODELS, ids=["tiny", "released"])
@pytest.mark.parametrize(("context", "drafts"), [(8192, 2), (4099, 0), (64, 3)])
def test_a_sequence_on_the_cpu_is_planned_to_the_byte(
    shape: ModelShape, config: ModelConfig, context: int, drafts: int
) -> None:
    pool = StatePool(config, slots=1, capacity=context, drafts=drafts, device=META)
    planned, slot = allocations.cpu_state(shape, context, drafts), pool.slots[0]
    assert planned.slot == nbytes(slot)
    assert (planned.fixed, planned.token) == pool.saved_bytes()


@pytest.mark.parametrize(("shape", "config"), MODELS, ids=["tiny", "released"])
@pytest.mark.parametrize(("context", "drafts"), [(8192, 2), (4099, 0), (64, 1)])
def test_a_sequence_on_the_gpu_is_planned_to_the_byte(
    shape: ModelShape, config: ModelConfig, context: int, drafts: int
) -> None:
    dtype = torch.float32 if allocations.exact(shape) else torch.bfloat16
    state = SlotState.allocate(config, slots=3, capacity=context, drafts=drafts > 0, device=META, cache_dtype=dtype)
    planned = allocations.gpu_state(shape, context, drafts)
    saves = SavedStates(state, HostMemory(None), 0)
    beside = saves.staging, saves.staged, saves.layout.fixed, saves.layout.grown
    assert planned.once + 3 * planned.slot == nbytes(state, beside)
    assert (planned.fixed, planned.token) == saves.layout.saved_bytes()


@pytest.mark.parametrize(("shape", "config"), MODELS, ids=["tiny", "released"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_expert_pool_and_its_areas_are_planned_to_the_byte(
    shape: ModelShape, config: ModelConfig, share: float
) -> None:
    dtype = torch.float8_e4m3fn if shape is FP8 else torch.bfloat16
    layers = allocations.expert_layers(shape, 2)
    slots = slots_for(int(share * shape.routed_params * dtype.itemsize), config, layers, shape.expert_bytes)
    assert slots in (shape.experts_per_token, int(0.3 * shape.experts), shape.experts)
    pool = ExpertPool(config, layers, slots, dtype, META, blocks=shape.scale_blocks)
    own = (pool.memory, pool.scales, pool.tick, pool.source, pool.tables, pool._every)
    residency = [(r.owner, r.used, r.counts) for r in pool.residency if r is not None]
    area = shape.expert_bytes * allocations.area_slots(shape.experts, shape.experts_per_token, slots)
    assert allocations.pool_bytes(shape, layers, slots) + area == nbytes(own, residency)


@pytest.mark.parametrize("kind", ["embedded", "fp32", "fp8"])
@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("dense_fp8", [False, True], ids=["as stored", "quantised"])
def test_the_dense_weights_on_the_gpu_are_planned_to_the_byte(
    kind: str, drafts: int, dense_fp8: bool, tmp_path: Path
) -> None:
    folder = EMBEDDED if kind == "embedded" else make_tiny(tmp_path / "tiny", layers=4)
    if kind == "fp8":
        bf16 = make_tiny(tmp_path / "bf16", layers=4, dtype="bfloat16")
        folder, _ = make_fp8(bf16, tmp_path / "fp8", tmp_path / "wide")
    checkpoint = Checkpoint(folder)
    released_as = {"quantization_config": {"quant_method": "fp8"}} if kind == "fp8" else {}
    shape = ModelShape.from_config(json.loads((folder / "config.json").read_text()) | released_as)
    dense = torch.float32 if kind == "fp32" else torch.bfloat16
    packed = RowMajor(checkpoint, META, dense, drafts=drafts > 0, dense_fp8=dense_fp8).pack()
    assert allocations.weight_bytes(shape, drafts, fp8=dense_fp8) == nbytes(on_the_device(packed))
    shards = sum(checkpoint.tensor(name).nbytes for name in checkpoint.expected if ".shard_" in name)
    assert allocations.table_bytes(shape) == (0, shards)


def on_the_device(packed: Weights) -> list[torch.Tensor]:
    """What is not a view of the checkpoint's files; the embedding is copied after packing."""
    return [packed.embedding, *(t for t in tensors(packed) if t.device.type == "meta")]


@pytest.mark.parametrize(("shape", "config"), MODELS, ids=["tiny", "released"])
@pytest.mark.parametrize("context", [512, 8192])
def test_the_buffers_of_a_step_are_within_the_scratch_that_is_planned(
    shape: ModelShape, config: ModelConfig, context: int
) -> None:
    choosing = Work.empty(config.vocab, META), Best.empty(allocations.STEP_ROWS, config.vocab, META)
    made = nbytes(vars(Buffers(config, context + allocations.SPARE, META)), choosing)
    planned = allocations.scratch_bytes(shape, 0, context, 4)
    assert made <= planned <= 3 * made
