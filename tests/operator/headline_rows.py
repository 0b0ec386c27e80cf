"""What a person on call may find, and what the status must say of it."""

from dataclasses import dataclass

from carousel_operator import names
from carousel_operator.view import Exit, Observed
from carousel_operator.want import Want

from tests.operator.scene import (
    NEW,
    NOW,
    OLD,
    GiB,
    cordoned,
    crashing,
    loading,
    lost,
    mark,
    pending,
    pod,
    sight,
    sizes,
    told,
    waiting,
    want,
)


@dataclass(frozen=True)
class Row:
    """A situation, the reason that a person reads first, and words that its message must have."""

    sentence: str
    want: Want
    sight: Observed
    reason: str
    words: tuple[str, ...] = ()
    ready: str = "False"
    degraded: str = "False"
    condition: str = names.READY  # the one that carries the reason


ROWS = [
    Row("serving", want(replicas=2), sight(pod(0), pod(1)), "Serving", ("2 of 2",), "True"),
    Row("A1 no free GPU", want(), sight(pending()), "WaitingForGPU", ("chat-0", "Insufficient nvidia.com/gpu")),
    Row(
        "A1 no free GPU in a rollout",
        want(replicas=2),
        sight(pending(0), pod(1, OLD)),
        "WaitingForGPU",
        ("Insufficient",),
    ),
    Row("pulling", want(), sight(waiting(0, "ContainerCreating")), "PullingImage", ("ContainerCreating", "node-a")),
    Row(
        "downloading",
        want(),
        sight(pod(0, ready=False, running=False, started=False, initialising=True, says=None)),
        "DownloadingModel",
    ),
    Row("C30 loading", want(), sight(loading()), "LoadingModel", ("43% since 13:46:30Z",)),
    Row(
        "draining",
        want(),
        sight(pod(0, OLD, mark=mark(), says={"sessions": 3, "running": 1, "drain": told()})),
        "Draining",
        ("draining chat-0: 3 sessions, 1 request, until",),
    ),
    Row(
        "draining on a cordoned node",
        want(),
        sight(
            pod(0, mark=mark("cordon", timeout=None), says={"sessions": 3, "drain": told("cordon")}),
            nodes=cordoned("node-a"),
        ),
        "Draining",
        ("until it is quiet",),
    ),
    Row(
        "about to drain",
        want(),
        sight(pod(0), nodes=cordoned("node-a")),
        "Draining",
        ("chat-0 begins to drain: cordon",),
    ),
    Row(
        "a drained pod that is not gone yet",
        want(),
        sight(pod(0), pod(1), statefulset_replicas=1),
        "Draining",
        ("2 pods exist, 1 wanted",),
    ),
    Row(
        "pods that nobody makes",
        want(replicas=2),
        sight(pod(0), statefulset_replicas=2),
        "PullingImage",
        ("1 of 2 pods exist", "kubectl describe statefulset chat"),
    ),
    Row("rolling out", want(replicas=2), sight(loading(0), pod(1, OLD)), "RollingOut", ("1 of 2", NEW, "43%")),
    Row("suspended", want(suspend=True), sight(), "Suspended", ("spec.suspend",)),
    Row("scaled to none", want(replicas=0), sight(), "Suspended", ("spec.replicas is 0",)),
    Row(
        "suspending", want(suspend=True), sight(pod(mark=mark("suspend"), says={"drain": told("suspend")})), "Draining"
    ),
    Row(
        "crash loop",
        want(),
        sight(crashing(last_exit=Exit(139, "Error", NOW - 60))),
        "CrashLooping",
        ("139 (SIGSEGV)", "4 restarts, last at 13:45:40Z"),
        degraded="True",
    ),
    Row(
        "C34 killed for memory",
        want(),
        sight(crashing(last_exit=Exit(137, "OOMKilled"))),
        "HostOutOfMemory",
        ("8 GiB", "4 restarts"),
        degraded="True",
    ),
    Row("GPU memory", want(), sight(crashing(code=71)), "GPUOutOfMemory", ("71",), degraded="True"),
    Row(
        "C32 what a server said last, without the log line before it",
        want(),
        sight(crashing(last_exit=Exit(70, "Error", NOW - 60, "x" * 400 + "\nthe device is lost"))),
        "GPUUnhealthy",
        ("last at 13:45:40Z: the device is lost",),
        degraded="True",
    ),
    Row("C32 CUDA failed", want(), sight(crashing(code=70)), "GPUUnhealthy", ("70",), degraded="True"),
    Row(
        "C32 a bad device under a pod that is not ready",
        want(),
        sight(pod(ready=False, unhealthy_devices=("GPU-7",))),
        "GPUUnhealthy",
        ("GPU-7",),
        degraded="True",
    ),
    Row(
        "a lost node",
        want(),
        sight(pod(ready=False, says=None), nodes=lost(since=60)),
        "NodeLost",
        ("node-a", "not forced"),
        degraded="True",
    ),
    Row(
        "a missing Secret",
        want(hold="missing: Secret hub key token"),
        sight(waiting(0, "CreateContainerConfigError", 'secret "hub" not found'), missing=("Secret hub key token",)),
        "SecretMissing",
        ("Secret hub key token",),
        degraded="True",
    ),
    Row(
        "a missing Secret that only the kubelet sees",
        want(),
        sight(waiting(0, "CreateContainerConfigError", 'secret "hub" not found')),
        "SecretMissing",
        ("hub",),
        degraded="True",
    ),
    Row(
        "a missing claim",
        want(hold="missing: PersistentVolumeClaim models"),
        sight(pending(), missing=("PersistentVolumeClaim models",)),
        "ModelMissing",
        ("models",),
        degraded="True",
    ),
    Row("missing files", want(), sight(crashing(code=66)), "ModelMissing", ("66",), degraded="True"),
    Row(
        "an image that cannot be pulled",
        want(),
        sight(waiting(0, "ImagePullBackOff", "denied")),
        "ImagePullFailed",
        ("denied",),
        degraded="True",
    ),
    Row("refused settings", want(), sight(crashing(code=64)), "InvalidSpec", ("64",), degraded="True"),
    Row("a plan that the server refuses", want(), sight(crashing(code=78)), "LimitsDoNotFit", ("78",), degraded="True"),
    Row(
        "a plan that does not fit",
        want(blocked="host memory: 9 GiB of 8 GiB"),
        sight(pod()),
        "LimitsDoNotFit",
        ("9 GiB of 8 GiB",),
        degraded="True",
    ),
    Row(
        "an admin port that does not answer",
        want(),
        sight(pod(ready=False, says=None)),
        "AdminUnreachable",
        ("no answer on its admin port", "count as busy"),
        degraded="True",
    ),
    Row(
        "a failing revision",
        want(replicas=2),
        sight(crashing(0, code=66), pod(1, OLD)),
        "NewRevisionFailing",
        ("chat-0", "66", "older pods kept: 1"),
        degraded="True",
    ),
    Row(
        "a failing revision of the only pod",
        want(),
        sight(crashing(0), current_revision=OLD),
        "NewRevisionFailing",
        ("chat-0",),
        degraded="True",
    ),
    Row(
        "resizing is progress of a ready server",
        want(memory_bytes=10 * GiB),
        sight(pod(resize=sizes(10, 8, pending="Deferred", message="node full"))),
        "Resizing",
        ("chat-0: deferred (node full)",),
        "True",
        condition=names.PROGRESSING,
    ),
]
