"""What one reconcile sees: typed views of a server's pods, children and nodes. Pure data; knows no client.

Times are seconds since the epoch on the operator's clock, sizes are bytes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from carousel_server.admin_state import AdminState, PeersUpdate

RestartReason = Literal["rollout", "restart", "scale-down", "cordon", "suspend"]


@dataclass(frozen=True)
class Mark:
    """The drain annotation of a pod: it survives an operator restart, so a drain keeps its clock."""

    reason: RestartReason
    started_at: float
    deadline: float | None  # None: no deadline applies (a cordoned node)

    def dump(self) -> str:
        """The annotation's text."""
        return json.dumps({"reason": self.reason, "startedAt": self.started_at, "deadline": self.deadline})

    @classmethod
    def load(cls, text: str | None) -> "Mark | None":
        """None for a missing or unreadable mark: the drain then starts again, which loses nothing."""
        try:
            raw = json.loads(text or "")
            deadline = raw["deadline"]
            if raw["reason"] not in ("rollout", "restart", "scale-down", "cordon", "suspend"):
                return None
            return cls(raw["reason"], float(raw["startedAt"]), None if deadline is None else float(deadline))
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Exit:
    """How a container ended."""

    code: int
    reason: str = ""  # as the kubelet says: Error, OOMKilled, Completed
    at: float | None = None
    message: str = ""

    @property
    def out_of_memory(self) -> bool:
        """Killed by the kernel because the pod's memory limit was reached."""
        return self.reason == "OOMKilled"


@dataclass(frozen=True)
class Waiting:
    """Why a container does not run: the kubelet's reason and message."""

    reason: str
    message: str = ""
    init: bool = False


@dataclass(frozen=True)
class ResizeView:
    """Where an in-place resize of a pod stands."""

    wanted: Mapping[str, int]  # what the pod's spec asks: cpu in thousandths, memory in bytes
    applied: Mapping[str, int]  # what the running container has
    pending: Literal["", "Deferred", "Infeasible"] = ""
    message: str = ""
    since: float | None = None
    refused: str = ""  # the API server's refusal, kept in an annotation


@dataclass(frozen=True)
class PodView:
    """A pod of the StatefulSet and what its admin port says."""

    name: str
    uid: str
    ordinal: int
    created: float
    revision: str = ""
    restart_id: str = ""
    node: str = ""
    ip: str = ""
    phase: str = "Pending"
    ready: bool = False
    running: bool = False
    started: bool = False  # the start-up probe of this container passed: only then can it hold sessions
    deleting: bool = False
    evicted: bool = False  # the API server says that somebody else disrupts it
    waiting: Waiting | None = None
    initialising: bool = False
    unschedulable: str = ""
    restarts: int = 0
    last_exit: Exit | None = None
    unhealthy_devices: tuple[str, ...] = ()
    resize: ResizeView | None = None
    mark: Mark | None = None
    secrets_digest: str = ""
    admin: AdminState | None = None
    admin_error: str = ""
    running_since: float | None = None
    silent_since: float | None = None  # its admin port has not answered since then
    protected: bool = False  # a node autoscaler is told not to move it
    tolerates_cordon: bool = False  # it would come back to the same node

    @property
    def crash_looping(self) -> bool:
        """The kubelet waits before it starts the container again."""
        return self.waiting is not None and self.waiting.reason == "CrashLoopBackOff"

    @property
    def on_its_way(self) -> bool:
        """It has a node and pulls, downloads or loads there; not one that waits after a failure."""
        created = self.waiting is None or self.waiting.reason == "ContainerCreating"
        return bool(self.node) and not self.started and created and self.phase in ("Pending", "Running")

    @property
    def nothing_to_drain(self) -> bool:
        """No process of this pod can hold a session: sessions live in memory, after the start-up probe.

        A pod that is not ready, or that does not answer, is not among them.
        """
        if self.admin is not None:
            return self.admin.phase in ("loading", "failed") and not (
                self.admin.sessions.active or self.admin.requests.running or self.admin.requests.queued
            )
        return self.phase in ("Failed", "Succeeded") or not self.running or not self.started

    @property
    def sessions(self) -> int:
        """Sessions it says it has; 0 when it does not answer."""
        return self.admin.sessions.active if self.admin else 0

    @property
    def busy_requests(self) -> int:
        """Requests queued and running; 0 when it does not answer."""
        return self.admin.requests.queued + self.admin.requests.running if self.admin else 0


@dataclass(frozen=True)
class NodeView:
    """A node that holds a pod. Unknown nodes (no permission to read them) are absent."""

    name: str
    cordoned: bool = False
    lost_since: float | None = None  # Ready is Unknown since then


@dataclass(frozen=True)
class SeenBoot:
    """A boot as the status remembers it from the last reconcile."""

    pod: str
    uid: str
    ordinal: int
    boot_id: str
    sessions: int
    node: str = ""
    state: str = ""  # "Terminating" when it was seen going
    asked: float | None = None  # when it had these sessions; None: as the status says, which may be older


@dataclass(frozen=True)
class Observed:
    """Everything that a plan may depend on, besides the spec and the time."""

    pods: tuple[PodView, ...] = ()
    statefulset_replicas: int | None = None  # None: there is no StatefulSet yet
    peers: PeersUpdate = field(default_factory=lambda: PeersUpdate(generation=0))
    seen: tuple[SeenBoot, ...] = ()
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    current_revision: str = ""  # the revision that all pods ran last
    missing: tuple[str, ...] = ()  # "Secret/name key k", "PersistentVolumeClaim/name": referenced and absent

    def pod(self, ordinal: int) -> PodView | None:
        """The pod with this ordinal, if it exists."""
        return next((p for p in self.pods if p.ordinal == ordinal), None)


Json = dict[str, Any]
Key = tuple[str, str]  # namespace and name of an InferenceServer
