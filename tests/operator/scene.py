"""Short words for the tables of the planner: pods, wants and sights with defaults of a healthy server."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from carousel_operator.drain import DrainSettings
from carousel_operator.view import Exit, Mark, NodeView, Observed, PodView, ResizeView, SeenBoot, Waiting
from carousel_operator.want import Want
from carousel_server.admin_state import AdminState, DrainState, Peer, PeersUpdate, RequestCounts, SessionCounts
from carousel_server.limits import Limits

NOW = 1_000_000.0
OLD, NEW = "old", "new"
GiB = 2**30


def state(
    ordinal: int = 0,
    *,
    sessions: int = 0,
    in_flight: int = 0,
    running: int = 0,
    queued: int = 0,
    idle: float | None = None,
    drain: DrainState | None = None,
    phase: str = "serving",
    boot: str = "",
    generation: int = 1,
    peers: int = 1,
    progress: float = 1.0,
    message: str = "",
    plan_bytes: int = 0,
) -> AdminState:
    """What a pod's admin port says."""
    if drain is not None and phase == "serving":
        phase = "closed" if drain.closed else "draining"
    return AdminState(
        version="1",
        boot_id=boot or f"boot{ordinal}",
        ordinal=ordinal,
        phase=phase,
        progress=progress,
        message=message,
        uptime_seconds=100.0,
        sessions=SessionCounts(active=sessions, in_flight=in_flight, capacity=64, newest_use_seconds=idle),
        requests=RequestCounts(queued=queued, running=running),
        reserved_bytes=0,
        drain=drain,
        limits=Limits(),
        limits_generation=generation,
        peers_generation=peers,
        plan_digest="",
        plan_host_bytes=plan_bytes,
        plan_gpu_bytes=0,
    )


def pod(ordinal: int = 0, revision: str = NEW, **changes: Any) -> PodView:
    """A ready pod that serves and is idle; `says` are arguments of its admin state, None for no answer."""
    says = changes.pop("says", {})
    healthy = PodView(
        name=f"chat-{ordinal}",
        uid=f"uid{ordinal}",
        ordinal=ordinal,
        created=NOW - 1000 + ordinal,
        revision=revision,
        node="node-a",
        ip=f"10.0.0.{ordinal}",
        phase="Running",
        ready=True,
        running=True,
        started=True,
        running_since=NOW - 900,
        admin=None if says is None else state(ordinal, **says),
        admin_error="no answer" if says is None else "",
    )
    return replace(healthy, **changes)


def loading(ordinal: int = 0, revision: str = NEW, **changes: Any) -> PodView:
    """A pod whose server is still loading, already kept from being moved."""
    changes = {"protected": True} | changes
    says = {"phase": "loading", "progress": 0.43, "boot": f"fresh{ordinal}"}
    return pod(
        ordinal, revision, **{"ready": False, "started": False, "running_since": NOW - 10, "says": says} | changes
    )


def pending(ordinal: int = 0, revision: str = NEW, **changes: Any) -> PodView:
    """A pod that no node has room for."""
    full = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    bare: dict[str, Any] = {"node": "", "ip": "", "phase": "Pending", "ready": False, "running": False}
    bare |= {"started": False, "says": None, "unschedulable": full, "running_since": None}
    return pod(ordinal, revision, **bare | changes)


def crashing(ordinal: int = 0, revision: str = NEW, code: int = 1, **changes: Any) -> PodView:
    """A pod in CrashLoopBackOff."""
    bare: dict[str, Any] = {"ready": False, "running": False, "started": False, "says": None, "running_since": None}
    bare |= {"waiting": Waiting("CrashLoopBackOff", "back-off 40s"), "restarts": 4, "last_exit": Exit(code, "Error")}
    return pod(ordinal, revision, **bare | changes)


def waiting(ordinal: int, reason: str, message: str = "", revision: str = NEW, **changes: Any) -> PodView:
    """A pod whose container cannot be made."""
    bare: dict[str, Any] = {"phase": "Pending", "ready": False, "running": False, "started": False, "says": None}
    return pod(ordinal, revision, **bare | {"waiting": Waiting(reason, message), "running_since": None} | changes)


def told(
    reason: str = "rollout", remaining: float = 600.0, grace: float = 120.0, *, closed: bool = False
) -> DrainState:
    """A drain as the server shows it."""
    return DrainState(reason=reason, remaining_seconds=remaining, idle_grace_seconds=grace, closed=closed)


def mark(reason: Any = "rollout", since: float = 0.0, timeout: float | None = 600.0) -> Mark:
    """A drain that began `since` seconds ago."""
    return Mark(reason, NOW - since, None if timeout is None else NOW - since + timeout)


def want(**changes: Any) -> Want:
    """One replica of revision `new`; `policy` and other words of spec.drain are taken too."""
    drain = {k: changes.pop(k) for k in ("policy", "session_timeout", "request_timeout", "idle_grace") if k in changes}
    base = Want(
        name="chat",
        revision=NEW,
        drain=DrainSettings(**drain),
        memory_bytes=8 * GiB,
        cpu_millis=1000,
        addresses={n: f"chat-{n}.chat-pods.default.svc:8000" for n in range(8)},
    )
    return replace(base, **changes)


def sight(*pods: PodView, **changes: Any) -> Observed:
    """What is seen; the peers table is as it should be unless a test gives another."""
    peers = PeersUpdate(
        generation=1,
        peers=[
            Peer(
                ordinal=p.ordinal,
                address=f"chat-{p.ordinal}.chat-pods.default.svc:8000",
                boot_id=p.admin.boot_id,
                accepting=p.admin.phase == "serving" and p.ready and not p.deleting and p.admin.drain is None,
            )
            for p in pods
            if p.admin
        ],
    )
    base = Observed(
        pods=pods,
        statefulset_replicas=len(pods),
        peers=peers,
        seen=tuple(seen(p) for p in pods if p.admin and p.admin.phase != "loading"),
        current_revision=OLD if any(p.revision == OLD for p in pods) else NEW,
    )
    return replace(base, **changes)


def seen(p: PodView, **changes: Any) -> SeenBoot:
    """The pod's boot as the status remembers it."""
    boot = SeenBoot(p.name, p.uid, p.ordinal, p.admin.boot_id if p.admin else f"boot{p.ordinal}", p.sessions, p.node)
    return replace(boot, **changes)


def cordoned(*names: str) -> dict[str, NodeView]:
    """Nodes that take no more pods."""
    return {name: NodeView(name, cordoned=True) for name in names}


def lost(name: str = "node-a", since: float = 60.0) -> dict[str, NodeView]:
    """A node that has not answered for `since` seconds."""
    return {name: NodeView(name, lost_since=NOW - since)}


def sizes(memory: int, applied: int | None = None, **changes: Any) -> ResizeView:
    """A pod that asks for `memory` GiB and has `applied` GiB."""
    wanted = {"memory": memory * GiB, "cpu": 1000}
    has = {"memory": (memory if applied is None else applied) * GiB, "cpu": 1000}
    return ResizeView(wanted, has, **changes)


def words(actions: Iterable[Any]) -> str:
    """Actions as a short sentence: `mark chat-0, quiesce chat-0 600s`."""
    return ", ".join(filter(None, (_word(a) for a in actions)))


def _word(action: Any) -> str:
    kind = type(action).__name__
    match kind:
        case "SetMark":
            return f"mark {action.pod} {action.mark.reason}" if action.mark else f"unmark {action.pod}"
        case "Quiesce":
            return f"quiesce {action.pod} {action.remaining:.0f}s"
        case "Close":
            return f"{'force ' if action.force else ''}close {action.pod}"
        case "Delete":
            return f"delete {action.pod} grace {action.grace}"
        case "Undo":
            return f"undo {action.pod}"
        case "PushLimits":
            return f"limits {action.generation} to {action.pod}"
        case "PushPeers":
            return f"peers to {action.pod}"
        case "Protect":
            return f"{'protect' if action.on else 'expose'} {action.pod}"
        case "Resize":
            return f"resize {action.pod} {action.memory_bytes // GiB}Gi"
        case "Notice" | "DrainEnded":
            return ""
    raise TypeError(kind)
