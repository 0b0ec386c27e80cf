"""Limits to bytes to what the container asks for."""

from typing import Any

import pytest
from carousel_operator import memory
from carousel_server.limits import GiB, MiB
from carousel_server.memory_plan import plan
from carousel_server.presets import PRESETS

from tests.operator.specs import CLAIM, HUB, at, parsed

FP8 = (CLAIM, at("model.preset", "qwen3.8-flash-next-fp8"))


def test_the_plan_is_the_servers_own() -> None:
    spec = parsed(*FP8, limits={"sessions": {"bytes": "1Gi"}}, engine={"contextTokens": 8192})
    expected = plan(PRESETS["qwen3.8-flash-next-fp8"], spec.limits, spec.engine, device="cuda")
    assert memory.plan_for(spec) == expected


def test_unset_host_memory_is_the_plan_and_shared_memory_in_whole_mebibytes() -> None:
    spec = parsed(*FP8, resources={"sharedMemory": "1Gi"})
    planned = memory.plan_for(spec)
    assert planned
    asked = memory.container_bytes(spec, planned)
    assert asked % MiB == 0
    assert 0 <= asked - planned.host_bytes - GiB < MiB
    resources = memory.container_resources(spec, planned)
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == f"{asked // MiB}Mi"


def test_more_sessions_ask_for_exactly_their_bytes() -> None:
    def asked(size: str) -> int:
        spec = parsed(*FP8, limits={"sessions": {"bytes": size}})
        return memory.container_bytes(spec, memory.plan_for(spec))

    assert asked("2Gi") - asked("1Gi") == GiB


def test_set_host_memory_is_taken_as_it_is_and_checked_less_shared_memory() -> None:
    spec = parsed(gpu={"none": True})
    needed = memory.container_bytes(spec, memory.plan_for(spec))
    fits = parsed(gpu={"none": True}, resources={"hostMemory": needed})
    tight = parsed(gpu={"none": True}, resources={"hostMemory": needed - 2 * MiB})
    assert memory.container_bytes(fits, memory.plan_for(fits)) == needed
    assert memory.does_not_fit(fits, memory.plan_for(fits)) == ""
    said = memory.does_not_fit(tight, memory.plan_for(tight))
    assert "host memory: planned" in said
    assert f"set it to {needed // MiB}Mi" in said


def test_without_a_preset_there_is_no_plan_and_the_server_decides() -> None:
    spec = parsed(CLAIM, at("model.preset", None), resources={"hostMemory": "8Gi"})
    assert memory.plan_for(spec) is None
    assert memory.container_bytes(spec, None) == 8 * GiB
    assert memory.does_not_fit(spec, None) == ""


def test_a_container_without_host_memory_or_plan_has_no_size() -> None:
    with pytest.raises(ValueError, match=r"resources\.hostMemory"):
        memory.container_bytes(parsed(), None)


def test_limits_that_contradict_the_model_do_not_fit() -> None:
    spec = parsed(engine={"contextTokens": 2**20})
    assert "contextTokens is 1048576" in memory.does_not_fit(spec, memory.plan_for(spec))


@pytest.mark.parametrize(
    ("change", "devices"),
    [
        ({}, ("cpu", "cuda")),
        (HUB, ("cpu", "cuda")),
        ({"gpu": {"none": True}}, ("cpu",)),
        (FP8, ("cuda",)),
    ],
)
def test_a_model_is_planned_for_where_it_may_run(change: Any, devices: tuple[str, ...]) -> None:
    spec = parsed(*(change if isinstance(change, tuple) else (change,)))
    assert memory.devices(spec) == devices


def test_a_tiny_model_with_a_gpu_has_room_with_and_without_it() -> None:
    spec = parsed()
    sizes = {device: memory.plan_for(spec, device).host_bytes for device in memory.devices(spec)}  # type: ignore[union-attr]
    assert memory.container_bytes(spec, memory.plan_for(spec)) >= max(sizes.values())
    small = parsed(resources={"hostMemory": sizes["cpu"] + 64 * MiB})
    assert memory.does_not_fit(small, memory.plan_for(small)) == ""


def test_a_server_that_plans_the_same_is_no_skew_wherever_its_experts_are() -> None:
    spec = parsed(*FP8)
    shape = PRESETS["qwen3.8-flash-next-fp8"]
    for gpu in (40 * GiB, 80 * GiB, 141 * GiB, 288 * GiB):
        theirs = plan(shape, spec.limits, spec.engine, device="cuda", gpu_bytes=gpu)
        assert memory.skew(spec, theirs.host_bytes, theirs.gpu_bytes) == "", gpu


def test_a_server_on_the_cpu_is_compared_with_a_plan_for_the_cpu() -> None:
    spec = parsed()
    theirs = memory.plan_for(spec, "cpu")
    assert theirs
    assert memory.skew(spec, theirs.host_bytes, 0) == ""
    said = memory.skew(spec, theirs.host_bytes + 5, 0)
    assert f"({theirs.host_bytes} bytes)" in said
    assert f"({theirs.host_bytes + 5} bytes)" in said


def test_a_fixed_expert_pool_makes_the_gpus_total_comparable() -> None:
    spec = parsed(*FP8, engine={"expertPoolBytes": "24Gi"})
    theirs = plan(PRESETS["qwen3.8-flash-next-fp8"], spec.limits, spec.engine, device="cuda", gpu_bytes=141 * GiB)
    assert memory.skew(spec, theirs.host_bytes, theirs.gpu_bytes) == ""
    assert "GPU memory: planned" in memory.skew(spec, theirs.host_bytes, theirs.gpu_bytes + 1)
    unknown = parsed(CLAIM, at("model.preset", None), resources={"hostMemory": "8Gi"})
    assert memory.skew(unknown, 1, 1) == ""
