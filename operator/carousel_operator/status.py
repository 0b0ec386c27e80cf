"""The status that the operator writes, and when a write is worth it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carousel_server.units import human_bytes

from carousel_operator import intent, memory, names, timing
from carousel_operator.diagnosis import Diagnosis, diagnose
from carousel_operator.headline import Sight, Verdict, conditions
from carousel_operator.intent import Intent
from carousel_operator.ledger import Loss
from carousel_operator.plan import Plan
from carousel_operator.resource import InferenceServer
from carousel_operator.status_fields import (
    ChangeStatus,
    Condition,
    LimitsStatus,
    LostSessions,
    MemoryRow,
    MemoryStatus,
    PodDrain,
    PodExit,
    PodStatus,
    RevisionStatus,
    SessionsStatus,
    Status,
)
from carousel_operator.view import Json, Observed, PodView, SeenBoot
from carousel_operator.want import Want

COUNTS_SECONDS = 30.0  # a write that only changes counts waits this long after the last one
MAX_PODS, MAX_MESSAGE = 100, 4000


@dataclass(frozen=True)
class Rendered:
    """A status and its headline."""

    status: Json
    ready: Verdict


def render(
    server: InferenceServer,
    made: Intent,
    observed: Observed,
    plan: Plan,
    now: float,
) -> Rendered:
    """The whole status, as JSON."""
    want = made.want
    diagnoses = [(p, diagnose(p, observed.nodes.get(p.node), now, want.memory_bytes)) for p in observed.pods]
    skew = _skew(server, made, observed)
    sight = Sight(want, observed, plan, diagnoses, skew[0])
    verdicts = conditions(sight)
    applied = [p for p in observed.pods if p.admin and p.admin.limits_generation == want.limits_generation]
    # A preview shows what would be; what is carried out stays the old revision.
    finished = sight.whole and not want.preview
    current = want.revision if finished else observed.current_revision
    resized = all(step.state == "settled" for step in plan.resizes.values())
    settled = finished and not want.blocked and len(applied) == want.size and resized
    status = Status(
        observed_generation=server.generation,
        replicas=len(observed.pods),
        ready_replicas=sum(p.ready and not p.deleting for p in observed.pods),
        updated_replicas=sight.updated,
        draining_replicas=sum(d.state in ("Draining", "Closed") for _, d in diagnoses),
        selector=",".join(f"{key}={value}" for key, value in names.selector(server.name).items()),
        url=f"http://{server.name}.{server.namespace}.svc:{server.spec.service.port}",
        revision=RevisionStatus(current=current or None, desired=want.revision),
        limits=LimitsStatus(generation=want.limits_generation, applied_replicas=len(applied)),
        memory=_memory(server, made, skew[1], skew[2]),
        sessions=SessionsStatus(
            active=sum(_sessions(p, plan.seen) or 0 for p in observed.pods),
            capacity=sum(p.admin.sessions.capacity for p in observed.pods if p.admin and p.ready),
            lost=lost(server.status, plan.losses),
        ),
        change=None if settled and not want.preview else _change(made, observed, plan),
        pods=[_pod(p, d, plan.seen, want) for p, d in diagnoses[:MAX_PODS]],
        conditions=stamp(verdicts, server.status, server.generation, now),
    )
    return Rendered(dump(status), verdicts[0])


def refused(server_raw: Mapping[str, Any], reason: str, message: str, now: float) -> Rendered:
    """The status of an object that cannot be carried out: everything else stays as it was."""
    old = dict(server_raw.get("status") or {})
    generation = server_raw["metadata"].get("generation", 0)
    ready = Verdict(names.READY, "False", reason, message)
    others = [
        Condition.model_validate(c)
        for c in old.get("conditions") or ()
        if c.get("type") not in (names.READY, names.PROGRESSING, names.DEGRADED)
    ]
    verdicts = [
        ready,
        Verdict(names.PROGRESSING, "False", reason, message),
        Verdict(names.DEGRADED, "True", reason, message),
    ]
    stamped = [*stamp(verdicts, old, generation, now), *others]
    old["conditions"] = [dump(c) for c in sorted(stamped, key=lambda c: list(names.CONDITIONS).index(c.type))]
    old["observedGeneration"] = generation
    return Rendered(old, ready)


def stamp(verdicts: Sequence[Verdict], old: Mapping[str, Any], generation: int, now: float) -> list[Condition]:
    """Conditions with their times: a transition time moves only when the status does."""
    before = {c["type"]: c for c in old.get("conditions") or ()}
    stamped = []
    for verdict in verdicts:
        earlier = before.get(verdict.type, {})
        same = earlier.get("status") == verdict.status
        stamped.append(
            Condition(
                type=verdict.type,
                status=verdict.status,
                reason=verdict.reason,
                message=verdict.message[:MAX_MESSAGE],
                last_transition_time=earlier["lastTransitionTime"] if same else timing.rfc3339(now),
                observed_generation=generation,
            )
        )
    return stamped


def lost(old: Mapping[str, Any], losses: Sequence[Loss]) -> list[LostSessions]:
    """Lost boots and sessions by cause, counted on from the old status."""
    counts = {
        entry["cause"]: LostSessions.model_validate(entry) for entry in (old.get("sessions") or {}).get("lost") or ()
    }
    for loss in losses:
        so_far = counts.get(loss.cause, LostSessions(cause=loss.cause))
        counts[loss.cause] = LostSessions(
            cause=loss.cause, boots=so_far.boots + 1, sessions=so_far.sessions + loss.sessions
        )
    return [counts[cause] for cause in sorted(counts)]


def worth_writing(old: Mapping[str, Any], new: Mapping[str, Any], last_write: float | None, now: float) -> bool:
    """True when `new` tells something; counts alone wait 30 s after the last write."""
    if old == new:
        return False
    if _without_counts(old) != _without_counts(new):
        return True
    return last_write is None or now - last_write >= COUNTS_SECONDS


def dump(model: Any) -> Json:
    """JSON without unset fields; false and zero stay."""
    found: Json = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return found


def _without_counts(status: Mapping[str, Any]) -> Json:
    slim: Json = {key: value for key, value in status.items() if key not in ("sessions", "pods", "conditions")}
    slim["lost"] = (status.get("sessions") or {}).get("lost") or []
    counts = ("sessions", "inFlight", "progress")
    slim["pods"] = [{k: v for k, v in pod.items() if k not in counts} for pod in status.get("pods") or ()]
    slim["conditions"] = [{k: v for k, v in c.items() if k != "message"} for c in status.get("conditions") or ()]
    if isinstance(slim.get("change"), dict):
        slim["change"] = {k: v for k, v in slim["change"].items() if k not in ("sessions", "message")}
    return slim


def _sessions(pod: PodView, seen: Sequence[SeenBoot]) -> int | None:
    if pod.admin is not None:
        return pod.admin.sessions.active
    return next((boot.sessions for boot in seen if boot.uid == pod.uid), None)


def _pod(pod: PodView, found: Diagnosis, seen: Sequence[SeenBoot], want: Want) -> PodStatus:
    boot = next((b.boot_id for b in seen if b.uid == pod.uid), None)
    mark = pod.mark
    return PodStatus(
        name=pod.name,
        uid=pod.uid,
        node=pod.node or None,
        revision=pod.revision or None,
        state=found.state,
        progress=found.progress if found.progress != 100 else None,
        sessions=_sessions(pod, seen),
        in_flight=pod.busy_requests if pod.admin is not None else None,
        boot_id=boot,
        drain=PodDrain(
            reason=mark.reason,
            started_at=timing.rfc3339(mark.started_at),
            deadline=None if mark.deadline is None else timing.rfc3339(mark.deadline),
        )
        if mark is not None
        else None,
        last_exit=PodExit(
            code=pod.last_exit.code,
            reason=pod.last_exit.reason or None,
            at=None if pod.last_exit.at is None else timing.rfc3339(pod.last_exit.at),
        )
        if pod.last_exit is not None
        else None,
    )


def _memory(server: InferenceServer, made: Intent, host: int | None, gpu: int | None) -> MemoryStatus:
    plan = made.memory_plan
    return MemoryStatus(
        host_bytes=plan.host_bytes if plan is not None else 0,
        gpu_bytes=plan.gpu_bytes if plan is not None else 0,
        container_bytes=memory.container_bytes(server.spec, plan),
        reported_host_bytes=host,
        reported_gpu_bytes=gpu,
        table=[MemoryRow.model_validate(row) for row in intent.rows(plan)],
    )


def _skew(server: InferenceServer, made: Intent, observed: Observed) -> tuple[str, int | None, int | None]:
    current = {
        p.name: p.admin
        for p in observed.pods
        if p.revision == made.want.revision and p.admin and p.admin.limits_generation == made.want.limits_generation
    }
    found = intent.skews(server.spec, current)
    plan = made.memory_plan
    if not found or plan is None:
        return "", None, None
    pod, state = found[0]
    ours = f"host {human_bytes(plan.host_bytes)}, GPU {human_bytes(plan.gpu_bytes)}"
    theirs = f"host {human_bytes(state.plan_host_bytes)}, GPU {human_bytes(state.plan_gpu_bytes)}"
    text = f"{pod} (server {state.version}) plans {theirs}; the operator plans {ours}; see status.memory"
    return text, state.plan_host_bytes, state.plan_gpu_bytes


def _change(made: Intent, observed: Observed, plan: Plan) -> ChangeStatus | None:
    told = made.change
    if told is None:
        return None
    touched = observed.pods if told.class_ == "Restart" else ()
    sessions = sum(_sessions(p, plan.seen) or 0 for p in touched)
    pods = f"{len(touched)} pod{'s' * (len(touched) != 1)}"
    held = f"{sessions} session{'s' * (sessions != 1)}"
    doing = {
        "Restart": f"drains and replaces {pods} with {held}, one at a time",
        "Resize": "changes CPU and memory of running pods; no session is lost unless a node refuses",
        "Hot": "is pushed to running pods; no session is lost",
        "None": "changes no pod's settings",
    }[told.class_]
    lead = "would: " if told.preview else "when the limits fit: " if made.want.blocked else ""
    return told.model_copy(update={"sessions": sessions, "message": f"{lead}{doing}"})
