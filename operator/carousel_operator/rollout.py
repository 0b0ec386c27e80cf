"""Which pods must go, and which one goes first: one pod at a time, broken ones first. Pure."""

from dataclasses import dataclass
from typing import Literal

from carousel_operator import resize
from carousel_operator.timing import clock
from carousel_operator.view import NodeView, Observed, PodView, RestartReason
from carousel_operator.want import Want

# What the kubelet says of an image that will not come by waiting.
IMAGE_ERRORS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
FINAL_EXITS = frozenset({64, 66, 78})  # the same spec fails the same way again
GPU_ERROR_EXIT, GPU_RESTARTS = 70, 3


@dataclass(frozen=True)
class Rollout:
    """Where a rollout stands."""

    state: Literal["done", "progressing", "failing"]
    why: str = ""
    outdated: tuple[str, ...] = ()  # pods that must be replaced
    failing_pod: str = ""


@dataclass(frozen=True)
class Choice:
    """Pods to drain now, and why each of them."""

    drains: dict[str, RestartReason]
    rollout: Rollout
    step_down: bool = False  # the highest ordinal leaves by lowering the StatefulSet's replicas


def outdated(pod: PodView, want: Want) -> bool:
    """True for a pod that only a replacement can bring to the spec."""
    if pod.revision != want.revision or pod.secrets_digest != want.secrets_digest:
        return True
    return resize.step(pod, want).state == "refused"


def failing(pod: PodView, want: Want, node: NodeView | None, now: float) -> str:
    """Why a pod of the desired revision will not become ready; "" while it still may."""
    if pod.ready or pod.deleting or (node is not None and node.lost_since is not None):
        return ""
    if pod.waiting is not None and pod.waiting.reason in IMAGE_ERRORS:
        return f"{pod.waiting.reason}: {pod.waiting.message}"
    if pod.crash_looping or (pod.restarts and pod.last_exit and pod.last_exit.code in FINAL_EXITS):
        code = pod.last_exit.code if pod.last_exit else "unknown"
        return f"its container exits with {code}, {pod.restarts} restarts"
    if pod.unschedulable:
        return ""  # waiting for a node is not a fault of the revision
    since = max(pod.created, pod.running_since or 0.0)
    if now - since > want.startup_timeout:
        return f"not ready within startup.timeout ({want.startup_timeout:.0f} s) since {clock(since)}"
    return ""


def choose(want: Want, observed: Observed, now: float) -> Choice:
    """Every pod that should drain now."""
    applied = observed.statefulset_replicas
    if want.blocked or want.preview:
        return Choice(_kept_marks(observed), Rollout("done"))
    if want.suspend:
        return Choice({p.name: "suspend" for p in observed.pods if not p.deleting}, Rollout("done"))
    drains: dict[str, RestartReason] = {}
    for pod in observed.pods:
        node = observed.nodes.get(pod.node)
        if pod.ordinal < want.size and node is not None and node.cordoned and not pod.tolerates_cordon:
            drains[pod.name] = "cordon"
    step_down = applied is not None and applied > want.size
    victim = observed.pod(applied - 1) if step_down and applied is not None else None
    if victim is not None and not victim.deleting:
        drains[victim.name] = "scale-down"
    rollout = _rollout(want, observed, now)
    if rollout.state == "progressing":
        candidate = _next(want, observed, rollout, may_begin=not drains and not step_down)
        if candidate is not None:
            drains[candidate.name] = want.change_reason
    return Choice({name: why for name, why in drains.items() if not _deleting(observed, name)}, rollout, step_down)


def _kept_marks(observed: Observed) -> dict[str, RestartReason]:
    """Drains that go on although nothing new may begin."""
    return {p.name: p.mark.reason for p in observed.pods if p.mark and not p.deleting}


def _deleting(observed: Observed, name: str) -> bool:
    return any(p.deleting for p in observed.pods if p.name == name)


def _rollout(want: Want, observed: Observed, now: float) -> Rollout:
    kept = [p for p in observed.pods if p.ordinal < want.size]
    old = tuple(p.name for p in kept if not p.deleting and outdated(p, want))
    unfinished = bool(old) or observed.current_revision not in ("", want.revision)
    for pod in kept if unfinished else ():
        why = "" if pod.name in old else failing(pod, want, observed.nodes.get(pod.node), now)
        if why:
            return Rollout("failing", f"{pod.name}: {why}", old, pod.name)
    if old and want.hold:
        return Rollout("failing", want.hold, old)
    if not old and not (unfinished and _in_transition(want, kept, old)):
        return Rollout("done")
    return Rollout("progressing", f"{len(old)} of {want.size} pods to replace", old)


def _in_transition(want: Want, kept: list[PodView], old: tuple[str, ...]) -> bool:
    """True while a pod is missing, going, or new and not ready yet."""
    return len(kept) < want.size or any(p.deleting or (p.name not in old and not p.ready) for p in kept)


def _next(want: Want, observed: Observed, rollout: Rollout, *, may_begin: bool) -> PodView | None:
    """The pod whose turn it is, or None while an earlier replacement is not ready yet."""
    kept = [p for p in observed.pods if p.ordinal < want.size]
    candidates = [p for p in kept if p.name in rollout.outdated]
    begun = [p for p in candidates if p.mark is not None and p.mark.reason in ("rollout", "restart")]
    if begun:
        return min(begun, key=lambda p: (p.mark.started_at if p.mark else 0.0, p.ordinal))
    if not may_begin or _in_transition(want, kept, rollout.outdated):
        return None
    return min(candidates, key=lambda p: (not p.nothing_to_drain, p.sessions, p.created, p.ordinal), default=None)


def gpu_failed(pod: PodView) -> bool:
    """True when only another pod, with another device, can help: CUDA failed in restart after restart."""
    exit_code = pod.last_exit.code if pod.last_exit else None
    return exit_code == GPU_ERROR_EXIT and pod.restarts >= GPU_RESTARTS and not pod.deleting and pod.nothing_to_drain
