"""What the spec asks for, in the terms of a plan: numbers, digests and settings. Pure; knows no client."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from carousel_server.limits import Limits

from carousel_operator.drain import DrainSettings


@dataclass(frozen=True)
class Want:
    """The desired state of one InferenceServer."""

    name: str
    revision: str
    replicas: int = 1
    suspend: bool = False
    drain: DrainSettings = field(default_factory=DrainSettings)
    startup_timeout: float = 1200.0  # seconds
    limits: Limits = field(default_factory=Limits)
    limits_generation: int = 1
    memory_bytes: int | None = None  # of the server container; None: the plan failed, leave pods as they are
    cpu_millis: int | None = None
    secrets_digest: str = ""
    change_reason: Literal["rollout", "restart"] = "rollout"  # restart: only restart.id changed
    addresses: Mapping[int, str] = field(default_factory=dict)  # ordinal -> host:port of the client port
    blocked: str = ""  # why nothing of the new spec may be carried out
    hold: str = ""  # why no pod may be replaced: the new one could not start
    preview: bool = False

    @property
    def size(self) -> int:
        """Pods to keep."""
        return 0 if self.suspend else self.replicas
