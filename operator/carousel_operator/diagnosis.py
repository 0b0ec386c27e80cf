"""What is the matter with one pod: a state for status.pods and a reason of names.REASONS with its numbers. Pure."""

import signal
from dataclasses import dataclass

from carousel_server.admin_state import EXIT_CODES
from carousel_server.units import human_bytes

from carousel_operator import drain, rollout, timing
from carousel_operator.status_fields import PodState
from carousel_operator.view import NodeView, PodView

# kubelet reasons of a container that cannot be created from what the spec refers to
CONFIG_ERRORS = frozenset({"CreateContainerConfigError", "CreateContainerError"})
# The start-up probe has passed but the admin port does not answer: one missed answer is not news.
UNREACHABLE_SECONDS = 10.0

# A lower number is worse; the worst pod gives the server its headline.
SEVERITY = {
    reason: rank
    for rank, reason in enumerate(
        (
            "NodeLost",
            "GPUUnhealthy",
            "InvalidSpec",
            "LimitsDoNotFit",
            "ModelMissing",
            "SecretMissing",
            "HostOutOfMemory",
            "GPUOutOfMemory",
            "CrashLooping",
            "ImagePullFailed",
            "AdminUnreachable",
            "WaitingForGPU",
            "PullingImage",
            "DownloadingModel",
            "LoadingModel",
            "Draining",
            "Serving",
        )
    )
}
FAULTS = frozenset(list(SEVERITY)[: list(SEVERITY).index("WaitingForGPU")])


@dataclass(frozen=True)
class Diagnosis:
    """One pod's state, the reason it gives, and a message for people."""

    state: PodState
    reason: str
    message: str
    progress: int | None = None  # per cent


def diagnose(pod: PodView, node: NodeView | None, now: float, memory_limit: int | None = None) -> Diagnosis:
    """The first thing that is wrong with the pod, or Serving."""
    if node is not None and node.lost_since is not None:
        gone = f"node {node.name} has not answered since {timing.rfc3339(node.lost_since)}"
        return Diagnosis("Lost", "NodeLost", f"{pod.name}: {gone}; its sessions are unknown, and it is not forced")
    if pod.deleting:
        return Diagnosis("Terminating", "Draining", f"{pod.name} is terminating with {drain.load(pod)}")
    if pod.unhealthy_devices:
        devices = ", ".join(pod.unhealthy_devices)
        state: PodState = "Serving" if pod.ready else "Failed"
        return Diagnosis(state, "GPUUnhealthy", f"{pod.name}: device {devices} is unhealthy")
    waiting = _waiting(pod)
    if waiting is not None:
        return waiting
    if not pod.ready and pod.last_exit is not None and (pod.crash_looping or not pod.started):
        found = _exited(pod, memory_limit)
        if found is not None:
            return found
    if pod.phase in ("Failed", "Succeeded"):
        return Diagnosis("Failed", "CrashLooping", f"{pod.name} has ended ({pod.phase}) and is being replaced")
    return _running(pod, now)


def _waiting(pod: PodView) -> Diagnosis | None:
    if pod.unschedulable:
        missing_claim = "persistentvolumeclaim" in pod.unschedulable and "not found" in pod.unschedulable
        reason = "ModelMissing" if missing_claim else "WaitingForGPU"
        return Diagnosis("Pending", reason, f"{pod.name}: {pod.unschedulable} Waits since {timing.clock(pod.created)}")
    waiting = pod.waiting
    if waiting is None or pod.crash_looping:
        return None
    text = f"{pod.name}: {waiting.reason} {waiting.message}".strip()
    if waiting.reason in rollout.IMAGE_ERRORS:
        return Diagnosis("Pending", "ImagePullFailed", text)
    if waiting.reason in CONFIG_ERRORS:
        reason = "SecretMissing" if "secret" in waiting.message.lower() else "InvalidSpec"
        return Diagnosis("Pending", reason, text)
    if pod.last_exit is not None:
        return None
    return Diagnosis("PullingImage", "PullingImage", f"{pod.name}: {waiting.reason} on {pod.node or 'no node yet'}")


def _exited(pod: PodView, memory_limit: int | None) -> Diagnosis | None:
    ended = pod.last_exit
    if ended is None or (ended.code == 0 and not pod.crash_looping):
        return None
    after = f"{pod.restarts} restart{'s' * (pod.restarts != 1)}"
    if ended.at is not None:
        after += f", last at {timing.clock(ended.at)}"
    said = f": {_last_words(ended.message)}" if ended.message else ""
    if ended.out_of_memory:
        limit = f" at its limit of {human_bytes(memory_limit)}" if memory_limit else ""
        return Diagnosis("Failed", "HostOutOfMemory", f"{pod.name} was killed for memory{limit}, {after}{said}")
    meaning = EXIT_CODES.get(ended.code) or _signal(ended.code)
    reason = meaning if meaning in FAULTS else "CrashLooping"
    return Diagnosis("Failed", reason, f"{pod.name} exited with {ended.code} ({meaning}), {after}{said}")


def _last_words(text: str) -> str:
    """The last whole lines that fit 300 characters, or the end of a line that alone is longer."""
    kept = ""
    for line in reversed(text.splitlines()):
        if len(line) + len(kept) >= 300:
            break
        kept = f"{line}\n{kept}" if kept else line
    return kept or text[-300:]


def _signal(code: int) -> str:
    """`SIGSEGV` for 139: a shell's way to write the signal that ended a process."""
    known = {128 + number: number.name for number in signal.Signals}
    return known.get(code, "error")


def _running(pod: PodView, now: float) -> Diagnosis:
    state = pod.admin
    if pod.initialising:
        # The init container tells its progress as a loading server does.
        said = state.message if state else "filling the model cache"
        per_cent = round(state.progress * 100) if state else None
        return Diagnosis("DownloadingModel", "DownloadingModel", f"{pod.name}: {said}", per_cent)
    if not pod.running:
        return Diagnosis("Pending", "PullingImage", f"{pod.name} is being created on {pod.node or 'no node yet'}")
    if state is None:
        if not pod.started:
            return Diagnosis("Loading", "LoadingModel", f"{pod.name} is starting{_since(pod.running_since)}")
        if pod.ready and pod.silent_since is not None and now - pod.silent_since < UNREACHABLE_SECONDS:
            return Diagnosis("Serving", "Serving", f"{pod.name} did not answer the last question")
        silent = f"{pod.name}: no answer on its admin port{_since(pod.silent_since)}"
        why = f" ({pod.admin_error})" if pod.admin_error else ""
        return Diagnosis("Unreachable", "AdminUnreachable", f"{silent}{why}; its sessions count as busy")
    per_cent = round(state.progress * 100)
    if state.phase == "loading" or (not pod.ready and state.phase == "serving"):
        message = f"{pod.name}: {state.message or 'loading'} {per_cent}%{_since(pod.running_since)}"
        return Diagnosis("Loading", "LoadingModel", message, per_cent)
    if state.phase == "failed":
        return Diagnosis("Failed", "CrashLooping", f"{pod.name}: {state.message}")
    if state.drain is not None and state.drain.closed:
        return Diagnosis("Closed", "Draining", f"draining {pod.name}: closed with {drain.load(pod)}")
    if state.drain is not None or pod.mark is not None:
        return Diagnosis("Draining", "Draining", f"draining {pod.name}: {drain.load(pod)}{_until(pod)}")
    return Diagnosis("Serving", "Serving", f"{pod.name}: {drain.load(pod)}")


def _since(at: float | None) -> str:
    return "" if at is None else f" since {timing.clock(at)}"


def _until(pod: PodView) -> str:
    if pod.mark is None:
        return ""
    if pod.mark.deadline is None:
        return ", until it is quiet"
    return f", until {timing.clock(pod.mark.deadline)}"
