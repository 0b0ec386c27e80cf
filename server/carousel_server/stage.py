"""What the server is at: loading, or serving with a core behind it. The routes of both ports ask here first."""

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from carousel_server.admin_state import AdminState, Peer, PeersUpdate, RequestCounts, SessionCounts
from carousel_server.failure import Failure
from carousel_server.http_stats import HttpStats
from carousel_server.identity import Identity, Verdict
from carousel_server.memory_plan import MemoryPlan
from carousel_server.prepare import Preparer
from carousel_server.service import Service
from carousel_server.turn import Settings


class Core(Service, Protocol):
    """The core as the ports see it: the service, and what the operator, the peers and Prometheus ask."""

    plan: MemoryPlan

    @property
    def draining(self) -> bool: ...

    @property
    def peers(self) -> tuple[Peer, ...]: ...

    def judge(self, identifier: str) -> Verdict:
        """Where a session or request id belongs."""

    @property
    def ordinal(self) -> int: ...

    @property
    def boot_id(self) -> str: ...

    @property
    def alive(self) -> bool:
        """Whether the worker's thread runs."""

    def session_seconds(self) -> float | None: ...

    def set_peers(self, update: PeersUpdate) -> bool: ...

    def metrics(self) -> bytes: ...

    def stop(self, timeout: float = 5.0) -> None: ...


@dataclass(frozen=True)
class ModelCard:
    """What `/v1/models` says."""

    name: str
    max_model_len: int
    created: int
    vocab_size: int

    def body(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "carousel",
            "max_model_len": self.max_model_len,
        }


@dataclass
class Stage:
    """Filled by the loader, read by the routes; event loop only."""

    identity: Identity
    plan: MemoryPlan
    version: str
    stats: HttpStats = field(default_factory=HttpStats)
    progress: float = 0.0
    message: str = "starting"
    started: float = field(default_factory=time.monotonic)
    core: Core | None = None
    preparer: Preparer | None = None
    card: ModelCard | None = None
    defaults: Settings = field(default_factory=Settings)
    stopping: bool = False  # a signal came: not even live sessions make this pod ready

    def serving(self) -> tuple[Core, Preparer, ModelCard]:
        """Raises Failure loading, with how far it is."""
        if self.core is None or self.preparer is None or self.card is None:
            raise Failure("loading", f"The model is loading: {self.progress:.0%}, {self.message}.", retry_after=5.0)
        return self.core, self.preparer, self.card

    @property
    def leaving(self) -> bool:
        """Clients do well to go elsewhere: it drains, or ends."""
        return self.stopping or (self.core is not None and self.core.draining)

    @property
    def dead(self) -> str:
        """Why nothing but a restart helps; "" while all is well, loading and a full queue included."""
        if self.core is None:
            return ""
        state = self.core.state()
        if state.phase == "failed":
            return state.message or "the device is lost"
        return "" if self.core.alive else "the worker thread has ended"

    def state(self) -> AdminState:
        """For the operator, from the first second on."""
        if self.core is not None and self.card is not None:
            return self.core.state()
        limits = self.plan.limits
        return AdminState(
            version=self.version,
            boot_id=self.identity.boot_id,
            ordinal=self.identity.ordinal,
            phase="loading",
            progress=self.progress,
            message=self.message,
            uptime_seconds=time.monotonic() - self.started,
            sessions=SessionCounts(active=0, in_flight=0, capacity=limits.sessions.count),
            requests=RequestCounts(queued=0, running=0),
            reserved_bytes=0,
            limits=limits,
            limits_generation=0,
            peers_generation=0,
            plan_digest=self.plan.digest,
            plan_host_bytes=self.plan.host_bytes,
            plan_gpu_bytes=self.plan.gpu_bytes,
        )

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of `/health`: 200 while requests are served, a drain included."""
        state = self.state()
        good = state.phase in ("serving", "draining") and not self.dead
        body = {"status": state.phase, "progress": state.progress, "message": state.message or self.dead}
        return (200 if good else 503), body

    def metrics(self) -> bytes:
        """Prometheus text."""
        if self.core is not None:
            return self.core.metrics() + self.stats.text(self.core.plan)
        return b"# TYPE carousel_serving gauge\ncarousel_serving 0\n" + self.stats.text(self.plan)
