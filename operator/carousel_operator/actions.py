"""What a plan may ask for, one small type each. apply.py carries them out in the order given."""

from dataclasses import dataclass
from typing import Literal

from carousel_server.limits import Limits

from carousel_operator.view import Mark, RestartReason

Outcome = Literal["quiet", "deadline", "undone", "nothing"]


@dataclass(frozen=True)
class PushPeers:
    """`PUT /admin/peers` with the planned table."""

    pod: str
    ip: str


@dataclass(frozen=True)
class PushLimits:
    """`PUT /admin/limits` with the planned generation."""

    pod: str
    ip: str
    generation: int
    limits: Limits


@dataclass(frozen=True)
class SetMark:
    """Write the drain annotation, or take it away."""

    pod: str
    uid: str
    mark: Mark | None


@dataclass(frozen=True)
class Protect:
    """Keep a node autoscaler from moving a pod that loads, or no longer."""

    pod: str
    uid: str
    on: bool


@dataclass(frozen=True)
class Quiesce:
    """`POST /admin/drain`."""

    pod: str
    ip: str
    reason: RestartReason
    remaining: float
    idle_grace: float


@dataclass(frozen=True)
class Close:
    """`POST /admin/drain/close`; a 409 means that a request came in between."""

    pod: str
    ip: str
    force: bool


@dataclass(frozen=True)
class Undo:
    """`DELETE /admin/drain`."""

    pod: str
    ip: str


@dataclass(frozen=True)
class Delete:
    """Delete this very pod (uid as precondition) with the grace that spec.drain asks for."""

    pod: str
    uid: str
    grace: int


@dataclass(frozen=True)
class Resize:
    """Change the running container's CPU and memory through the pod's resize subresource."""

    pod: str
    uid: str
    cpu_millis: int | None
    memory_bytes: int


@dataclass(frozen=True)
class Notice:
    """Post an Event on the InferenceServer; plans make one per transition."""

    reason: str  # one of names.EVENTS
    message: str
    warning: bool = False
    pod: str = ""  # dropped when an earlier action on this pod was not taken


@dataclass(frozen=True)
class DrainEnded:
    """Count a drain's outcome."""

    reason: RestartReason
    outcome: Outcome
    pod: str = ""


Action = PushPeers | PushLimits | Protect | SetMark | Quiesce | Close | Undo | Delete | Resize | Notice | DrainEnded
