"""From a spec and what was read to a Want: revision, limits generation, memory, the latest change. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from carousel_server.admin_state import AdminState
from carousel_server.limits import Limits
from carousel_server.memory_plan import MemoryPlan

from carousel_operator import change, memory, names, revision, timing
from carousel_operator.change import Change
from carousel_operator.drain import DrainSettings
from carousel_operator.resource import InferenceServer, InferenceServerSpec
from carousel_operator.status_fields import ChangeStatus
from carousel_operator.view import Observed
from carousel_operator.want import Want


@dataclass(frozen=True)
class Intent:
    """A Want with what the status tells of it."""

    want: Want
    memory_plan: MemoryPlan | None
    change: ChangeStatus | None  # None: nothing is being changed
    new_change: bool = False  # the change was not in the status yet: tell it before doing it


def form(
    server: InferenceServer,
    observed: Observed,
    *,
    applied: InferenceServerSpec | None,
    limits: tuple[int, Limits | None],
    secrets_digest: str,
    now: float,
) -> Intent:
    """What to want. `applied` is the spec of the StatefulSet, `limits` generation and limits of the ConfigMap."""
    spec = server.spec
    plan = memory.plan_for(spec)
    does_not_fit = memory.does_not_fit(spec, plan)
    difference = change.classify(applied, spec) if applied is not None else None
    told = told_change(server, difference, now)
    restart_only = told is not None and [f for f in told.fields if change.class_of(f) == "Restart"] == ["restart.id"]
    reason: Literal["rollout", "restart"] = "restart" if restart_only else "rollout"
    want = Want(
        name=server.name,
        revision=revision.of(spec),
        replicas=spec.replicas,
        suspend=spec.suspend,
        drain=DrainSettings(
            spec.drain.policy, spec.drain.session_timeout, spec.drain.request_timeout, spec.drain.idle_grace
        ),
        startup_timeout=spec.startup.timeout,
        limits=spec.limits,
        limits_generation=limits_generation(server, observed, *limits),
        memory_bytes=None if does_not_fit else memory.container_bytes(spec, plan),
        cpu_millis=spec.resources.cpu,
        secrets_digest=secrets_digest,
        change_reason=reason,
        addresses={n: address(server, n) for n in range(max(spec.replicas, observed.statefulset_replicas or 0))},
        blocked=does_not_fit,
        hold=f"missing: {', '.join(observed.missing)}" if observed.missing else "",
        preview=server.preview,
    )
    new = told is not None and (server.status.get("change") or {}).get("fields") != told.fields
    return Intent(want, plan, told, new)


def address(server: InferenceServer, ordinal: int) -> str:
    """host:port of a pod's client port, through the headless Service."""
    host = f"{server.name}-{ordinal}.{names.headless_service(server.name)}.{server.namespace}.svc"
    return f"{host}:{names.CLIENT_PORT}"


def limits_generation(server: InferenceServer, observed: Observed, in_map: int, limits: Limits | None) -> int:
    """The generation in force, or a newer one than any pod has seen when the limits differ."""
    newest = max((p.admin.limits_generation for p in observed.pods if p.admin), default=0)
    if limits == server.spec.limits and in_map >= newest and in_map > 0:
        return in_map
    return max(server.generation, in_map + 1, newest + 1)


def told_change(server: InferenceServer, difference: Change | None, now: float) -> ChangeStatus | None:
    """The change to show: a new difference, together with an earlier change that has not finished."""
    earlier = ChangeStatus.model_validate(server.status["change"]) if server.status.get("change") else None
    if earlier is not None and earlier.preview and not server.preview:
        earlier = None
    if not difference:
        return None if earlier is not None and earlier.preview else earlier
    fields = list(difference.fields)
    since = timing.rfc3339(now)
    if earlier is not None:
        since = earlier.since if set(fields) <= set(earlier.fields) else since
        if not server.preview:
            fields = [*earlier.fields, *(f for f in fields if f not in earlier.fields)]
    strongest = max((change.class_of(f) for f in fields), key=change.ORDER.index)
    return ChangeStatus(class_=strongest, fields=fields[:64], since=since, preview=server.preview or None)


def skews(spec: InferenceServerSpec, states: Mapping[str, AdminState | None]) -> list[tuple[str, AdminState]]:
    """Pods whose own memory plan has other totals than the operator's for the device that they run on."""
    return [
        (pod, state)
        for pod, state in states.items()
        if state is not None
        and state.plan_host_bytes
        and memory.skew(spec, state.plan_host_bytes, state.plan_gpu_bytes)
    ]


def rows(plan: MemoryPlan | None) -> list[dict[str, Any]]:
    """The plan as rows of status.memory.table."""
    if plan is None:
        return []
    return [
        {"name": row.key, "where": where, "bytes": row.bytes, "note": row.note}
        for where, part in (("host", plan.host), ("gpu", plan.gpu))
        for row in part
    ]
