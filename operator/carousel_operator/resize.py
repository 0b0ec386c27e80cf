"""In-place resize of running pods: what to ask for, when limits may be pushed, and when it cannot be done. Pure."""

from dataclasses import dataclass
from typing import Literal

from carousel_operator.view import PodView
from carousel_operator.want import Want

DEFERRED_SECONDS = 300.0  # a deferral that lasts this long is reported

State = Literal["settled", "ask", "waiting", "deferred", "refused"]


@dataclass(frozen=True)
class ResizeStep:
    """Where a pod's resize stands and what it means."""

    state: State
    may_push_limits: bool
    why: str = ""


def refusal(memory_bytes: int, cpu_millis: int | None, message: str) -> str:
    """The annotation's text: a refusal counts only for the sizes that were asked for."""
    return f"{memory_bytes}/{cpu_millis} {message}"


def step(pod: PodView, want: Want) -> ResizeStep:
    """The next step for one pod that keeps its revision.

    Raising memory: ask, wait until applied, then push limits. Lowering: push first, shrink when the pod runs with them.
    """
    view = pod.resize
    if view is None or want.memory_bytes is None:
        return ResizeStep("settled", True)
    target = {"memory": want.memory_bytes} | ({"cpu": want.cpu_millis} if want.cpu_millis is not None else {})
    applied = view.applied.get("memory", 0)
    roomy = applied >= want.memory_bytes
    tag = refusal(want.memory_bytes, want.cpu_millis, "")
    if view.refused.startswith(tag):
        return ResizeStep("refused", roomy, view.refused.removeprefix(tag))
    if any(view.wanted.get(key) != value for key, value in target.items()):
        lowering = view.wanted.get("memory", 0) > want.memory_bytes
        pushed = pod.admin is not None and pod.admin.limits_generation == want.limits_generation
        if lowering and not pushed:
            return ResizeStep("waiting", True, "memory shrinks after the pod runs with the new limits")
        return ResizeStep("ask", roomy)
    if view.pending == "Infeasible":
        return ResizeStep("refused", roomy, view.message or "no node can hold it")
    if view.pending == "Deferred":
        return ResizeStep("deferred", roomy, view.message)
    if any(view.applied.get(key) != value for key, value in target.items()):
        return ResizeStep("waiting", roomy, "the kubelet has not applied it yet")
    return ResizeStep("settled", True)
