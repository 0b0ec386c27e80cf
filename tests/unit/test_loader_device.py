"""Which device a server runs on, and what the engine is told of the plan. The device itself is a stand-in."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from carousel_server import loader
from carousel_server.engine.protocol import EngineError
from carousel_server.limits import EngineSettings, GiB, Limits
from carousel_server.loader import Source, StartError, blueprint, device_code, load_model
from carousel_server.memory_plan import rows_by_key

SOURCE = Source("embedded", "torch", Limits(), EngineSettings(context_tokens=1024))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of 16 GiB of which 10 are free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 * GiB, 16 * GiB))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `engine.load` was called with."""
    found: dict[str, Any] = {}

    def load(model: str, **settings: Any) -> None:
        found.update(settings, model=model)

    monkeypatch.setattr(loader, "load", load)
    return found


def loaded(source: Source) -> list[tuple[float, str]]:
    steps: list[tuple[float, str]] = []
    load_model(blueprint(source), lambda share, what: steps.append((share, what))).make_engine()
    return steps


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("choice", ["auto", "cuda"])
def test_a_gpu_is_taken_and_given_the_sizes_of_the_plan(choice: Any, told: dict[str, Any]) -> None:
    source = replace(SOURCE, device=choice)
    planned = blueprint(source).plan
    loaded(source)
    told.pop("progress")
    assert (planned.device, planned.engine.gpu_state_slots) == ("cuda", 4)
    assert told == {
        "model": "embedded",
        "context_tokens": 1024,
        "slots": 4,
        "drafts": 2,
        "threads": None,
        "device": "cuda",
        "expert_pool_bytes": planned.engine.expert_pool_bytes,
        "prefill_rows": planned.engine.prefill_chunk,
        "saved_bytes": (planned.limits.checkpoint_bytes or 0) + (planned.limits.prefix_cache.bytes or 0),
        "dense_fp8": False,
    }
    assert planned.engine.expert_pool_bytes == 9 * 16 * 3 * 64 * 256 * 2


@pytest.mark.usefixtures("gpu")
def test_settings_for_the_pool_the_chunk_and_the_slots_reach_the_engine(told: dict[str, Any]) -> None:
    settings = EngineSettings(
        context_tokens=1024,
        expert_pool_bytes=5 * 2**20,
        prefill_chunk=256,
        gpu_state_slots=2,
        drafts=1,
        weights="fp8",
    )
    loaded(replace(SOURCE, settings=settings))
    experts = told["expert_pool_bytes"] // (9 * 3 * 64 * 256 * 2)
    assert (experts, told["expert_pool_bytes"] <= 5 * 2**20) == (5, True)
    assert (told["prefill_rows"], told["slots"], told["drafts"], told["dense_fp8"]) == (256, 2, 1, True)


@pytest.mark.usefixtures("gpu")
def test_the_cpu_can_be_chosen_beside_a_gpu(told: dict[str, Any]) -> None:
    loaded(replace(SOURCE, device="cpu"))
    assert told["device"] == "cpu"


@pytest.mark.usefixtures("gpu")
def test_a_plan_counts_what_is_free_on_the_gpu_and_ends_with_78_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (GiB, 16 * GiB))
    with pytest.raises(StartError, match=r"does not fit: GPU memory: planned .* of 1 GiB") as caught:
        blueprint(SOURCE)
    assert caught.value.code == 78
    assert "state slots" in str(caught.value), "the table comes with it"


def test_fp8_projections_on_the_cpu_end_with_78() -> None:
    with pytest.raises(StartError, match=r"does not fit: engine\.weights is fp8: on the CPU") as caught:
        blueprint(replace(SOURCE, device="cpu", settings=EngineSettings(weights="fp8")))
    assert caught.value.code == 78


def test_without_a_gpu_auto_takes_the_cpu_and_cuda_ends_with_70(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    loaded(SOURCE)
    assert told["device"] == "cpu"
    with pytest.raises(StartError, match=r"--device cuda: .*; look at the node's driver") as caught:
        blueprint(replace(SOURCE, device="cuda"))
    assert caught.value.code == 70


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_does_not_answer_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> tuple[int, int]:
        raise RuntimeError("CUDA error: device not ready")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lost)
    with pytest.raises(StartError, match="the GPU does not answer: CUDA error: device not ready") as caught:
        blueprint(SOURCE)
    assert caught.value.code == 70


@pytest.mark.usefixtures("gpu")
def test_test_engines_never_touch_the_gpu() -> None:
    assert blueprint(replace(SOURCE, engine="scripted", device="cuda")).plan.device == "cpu"


@pytest.mark.usefixtures("gpu")
def test_a_tiny_model_is_planned_with_everything_on_the_gpu() -> None:
    found = blueprint(SOURCE).plan
    assert not found.experts_streamed
    assert rows_by_key(found.gpu)["expert streams"] == 0
    assert rows_by_key(found.host)["experts"] == 4 * 16 * 3 * 64 * 256 * 2, "buffers of a layer each on the way there"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), 71),
        (EngineError("the device is out of memory beyond its plan: CUDA out of memory", fatal=True), 71),
        (EngineError("the device failed: CUDA error: an illegal memory access was encountered", fatal=True), 70),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), 70),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (ValueError("/models/CUDA/config.json: out of memory"), None),
    ],
)
def test_the_exit_code_says_whether_the_gpu_or_its_memory_is_the_cause(error: Exception, code: int | None) -> None:
    assert device_code(error) == code


def test_the_host_s_memory_is_the_cgroup_s_limit_but_never_more_than_the_machine_has(tmp_path: Path) -> None:
    machine = loader.host_memory(())
    assert machine > GiB // 4
    for text, bytes_ in (("268435456\n", 2**28), ("max\n", machine), (f"{2**62}\n", machine)):
        (tmp_path / "memory.max").write_text(text)
        assert loader.host_memory((tmp_path / "none", tmp_path / "memory.max")) == bytes_


def test_limits_beyond_the_machine_s_memory_are_refused_with_the_table() -> None:
    with pytest.raises(StartError, match="prefix cache") as refused:
        blueprint(replace(SOURCE, limits=Limits.model_validate({"prefixCache": {"bytes": "900Ti"}})))
    assert refused.value.code == 78
