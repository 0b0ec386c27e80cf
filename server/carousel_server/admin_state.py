"""What the admin port says and takes: the one contract between a server and the operator.

Pydantic only. Times are seconds remaining or elapsed, never absolute: the clocks of pod and operator differ.
"""

from typing import Literal

from pydantic import Field

from carousel_server.limits import Limits, Model

Phase = Literal["loading", "serving", "draining", "closed", "failed"]
LossCause = Literal[
    "rollout",
    "restart",
    "scale-down",
    "cordon",
    "suspend",
    "eviction",
    "crash",
    "out-of-memory",
    "node-lost",
    "unknown",
]


class SessionCounts(Model):
    """Sessions of this boot."""

    active: int = Field(description="Sessions that exist, idle or in a turn.")
    in_flight: int = Field(description="Sessions with a turn in progress.")
    capacity: int = Field(description="limits.sessions.count")
    newest_use_seconds: float | None = Field(
        None, description="Seconds since the latest turn of any session ended; null without sessions, 0 during a turn."
    )


class RequestCounts(Model):
    """Requests of this boot that have not ended. `preparing` ones count as running."""

    queued: int
    running: int
    forwarded: int = Field(0, description="Requests of other boots whose replies this pod is passing back.")


class DrainState(Model):
    """A drain in progress."""

    reason: str
    remaining_seconds: float
    idle_grace_seconds: float
    closed: bool = False


class AdminState(Model):
    """`GET /admin/state`."""

    version: str
    boot_id: str
    ordinal: int
    phase: Phase
    progress: float = Field(description="Loading progress, 0 to 1.")
    message: str = Field("", description="What it is doing or what is wrong, for people.")
    uptime_seconds: float
    sessions: SessionCounts
    requests: RequestCounts
    reserved_bytes: int = Field(description="Bytes reserved by requests; 0 on an idle server.")
    drain: DrainState | None = None
    limits: Limits
    limits_generation: int
    peers_generation: int
    plan_digest: str
    plan_host_bytes: int
    plan_gpu_bytes: int


class DrainRequest(Model):
    """`POST /admin/drain`; repeating it replaces the earlier one."""

    reason: LossCause
    remaining_seconds: float = Field(ge=0)
    idle_grace_seconds: float = Field(ge=0)


class CloseRequest(Model):
    """`POST /admin/drain/close`; without force it answers 409 when a request or a recent session is there."""

    force: bool = False


class LimitsUpdate(Model):
    """`PUT /admin/limits`; a generation older than the one in force answers 409."""

    generation: int
    limits: Limits


class Peer(Model):
    """A pod of the same InferenceServer."""

    ordinal: int
    address: str = Field(description="host:port of the client port.")
    boot_id: str
    accepting: bool


class LostBoot(Model):
    """A boot whose sessions are gone, and why."""

    ordinal: int
    boot_id: str
    cause: LossCause
    at: str = Field(description="RFC 3339 UTC, shown to clients.")


class PeersUpdate(Model):
    """`PUT /admin/peers`, and the file `peers.json` of the ConfigMap for the next boot."""

    generation: int
    peers: list[Peer] = Field(default_factory=list)
    lost: list[LostBoot] = Field(default_factory=list, max_length=64)


EXIT_CODES = {
    0: "Clean",
    64: "InvalidSpec",
    66: "ModelMissing",
    70: "GPUUnhealthy",
    71: "GPUOutOfMemory",
    78: "LimitsDoNotFit",
}
