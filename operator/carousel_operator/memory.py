"""Bytes from limits, and from them what the server's container asks for. Pure.

The plan is the server's own (carousel_server.memory_plan), made here before any pod exists.
"""

from typing import Any

from carousel_server.limits import MiB
from carousel_server.memory_plan import Device, MemoryPlan, plan
from carousel_server.presets import PRESETS
from carousel_server.units import format_bytes, human_bytes

from carousel_operator.field_types import format_cpu
from carousel_operator.resource import InferenceServerSpec

GPU_RESOURCE = "nvidia.com/gpu"


def devices(spec: InferenceServerSpec) -> tuple[Device, ...]:
    """Where the model may run. The tiny one also runs without the GPU it was given: a fake device, or no driver."""
    if spec.gpu.none:
        return ("cpu",)
    return ("cpu", "cuda") if spec.preset == "tiny" else ("cuda",)


def plan_for(spec: InferenceServerSpec, device: Device | None = None) -> MemoryPlan | None:
    """The plan of a pod; None when the checkpoint's sizes are unknown (no preset).

    Without `device`, of the possible ones the one that fits with the most host memory. What does not fit is in
    `errors`; hostMemory, when set, is checked less /dev/shm, which is charged to the same cgroup.
    """
    if spec.preset is None:
        return None
    host = spec.resources.host_memory
    available = None if host is None else max(0, host - spec.resources.shared_memory)
    plans = [
        plan(PRESETS[spec.preset], spec.limits, spec.engine, device=d, host_bytes=available)
        for d in ((device,) if device else devices(spec))
    ]
    return max(plans, key=lambda p: (p.fits, p.host_bytes))


def container_bytes(spec: InferenceServerSpec, plan: MemoryPlan | None) -> int:
    """Memory request and limit of the container: hostMemory, or the plan and /dev/shm in whole MiB."""
    if spec.resources.host_memory is not None:
        return spec.resources.host_memory
    if plan is None:
        raise ValueError("resources.hostMemory is needed when model.preset is not set")
    return -(-(plan.host_bytes + spec.resources.shared_memory) // MiB) * MiB


def container_resources(spec: InferenceServerSpec, plan: MemoryPlan | None) -> dict[str, Any]:
    """`resources` of the server's container. Memory and devices have request = limit, CPU only a request."""
    memory = {"memory": format_bytes(container_bytes(spec, plan))}
    if spec.resources.ephemeral_storage is not None:
        memory["ephemeral-storage"] = format_bytes(spec.resources.ephemeral_storage)
    device = {} if spec.gpu.none or spec.gpu.claim else {spec.gpu.resource_name or GPU_RESOURCE: "1"}
    found: dict[str, Any] = {
        "requests": {"cpu": format_cpu(spec.resources.cpu), **memory, **device},
        "limits": {**memory, **device},
    }
    if spec.gpu.claim:
        found["claims"] = [{"name": "gpu"}]
    return found


def does_not_fit(spec: InferenceServerSpec, plan: MemoryPlan | None) -> str:
    """Why no pod may be changed, for the condition LimitsDoNotFit; empty when the plan fits."""
    if plan is None or plan.fits:
        return ""
    host = spec.resources.host_memory
    advice = ""
    if host is not None and plan.host_bytes + spec.resources.shared_memory > host:
        needed = -(-(plan.host_bytes + spec.resources.shared_memory) // MiB) * MiB
        shm = f"of which /dev/shm takes {format_bytes(spec.resources.shared_memory)}"
        wanted = f"set it to {format_bytes(needed)} ({human_bytes(needed)}) or lower limits"
        advice = f"; resources.hostMemory is {format_bytes(host)}, {shm}: {wanted}"
    return "; ".join(plan.errors) + advice


def skew(spec: InferenceServerSpec, reported_host_bytes: int, reported_gpu_bytes: int) -> str:
    """What a running server plans differently from this operator, for MemoryPlanSkew; empty when both agree.

    The size of the GPU is unknown here, so with an automatic expert pool the experts may be streamed or resident and
    the GPU's total is the server's to decide.
    """
    if spec.preset is None:
        return ""
    device: Device = "cuda" if reported_gpu_bytes else "cpu"
    limits, engine, shape = spec.limits, spec.engine, PRESETS[spec.preset]
    small = plan(shape, limits, engine, device=device)
    large = plan(shape, limits, engine, device=device, gpu_bytes=2**60)
    wrong = []
    if reported_host_bytes not in (small.host_bytes, large.host_bytes):
        wrong.append(("host", small.host_bytes, reported_host_bytes))
    if device == "cuda" and engine.expert_pool_bytes is not None and reported_gpu_bytes != small.gpu_bytes:
        wrong.append(("GPU", small.gpu_bytes, reported_gpu_bytes))
    return "; ".join(
        f"{where} memory: planned {human_bytes(ours)} ({ours} bytes), the server says {human_bytes(theirs)} "
        f"({theirs} bytes)"
        for where, ours, theirs in wrong
    )
