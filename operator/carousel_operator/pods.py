"""A pod as the API server gives it, and what its admin port said, to a PodView. Pure parsing; decides nothing."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from carousel_server.admin_state import AdminState

from carousel_operator import names, timing
from carousel_operator.view import Exit, Mark, NodeView, PodView, ResizeView, Waiting

_FACTORS = {"": 1.0, "m": 0.001, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_FACTORS |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
CORDON_TAINT = "node.kubernetes.io/unschedulable"


def quantity(text: str | int | float) -> float:
    """A Kubernetes quantity (`250m`, `1Gi`) as a number; 0 for what cannot be read."""
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text).strip())
    return float(found[1]) * _FACTORS.get(found[2], 0.0) if found else 0.0


def view(raw: Mapping[str, Any], admin: AdminState | None = None, admin_error: str = "") -> PodView:
    """A PodView; absent fields take their defaults."""
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    annotations, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    container = _named(status.get("containerStatuses"), names.CONTAINER)
    state = container.get("state") or {}
    name = meta.get("name", "")
    scheduled = conditions.get("PodScheduled") or {}
    failed = _failed_init(status)
    return PodView(
        name=name,
        uid=meta.get("uid", ""),
        ordinal=ordinal(name),
        created=timing.parse(meta.get("creationTimestamp")) or 0.0,
        revision=labels.get(names.LABEL_REVISION, ""),
        node=spec.get("nodeName", ""),
        ip=status.get("podIP", ""),
        phase=status.get("phase", "Pending"),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        running="running" in state,
        started=container.get("started") is True,
        deleting="deletionTimestamp" in meta,
        evicted=(conditions.get("DisruptionTarget") or {}).get("status") == "True" or status.get("reason") == "Evicted",
        waiting=_waiting(status),
        initialising=_initialising(status),
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
        restarts=(failed or container).get("restartCount", 0),
        last_exit=_last_exit(failed or container),
        unhealthy_devices=_unhealthy(container),
        resize=_resize(spec, container, conditions, annotations),
        mark=Mark.load(annotations.get(names.ANNOTATION_DRAIN)),
        secrets_digest=annotations.get(names.ANNOTATION_SECRETS, ""),
        admin=admin,
        admin_error=admin_error,
        running_since=timing.parse((state.get("running") or {}).get("startedAt")),
        protected=annotations.get(names.ANNOTATION_DO_NOT_DISRUPT) == "true",
        tolerates_cordon=any(_tolerates_cordon(t) for t in spec.get("tolerations") or ()),
    )


def node_view(raw: Mapping[str, Any]) -> NodeView:
    """A NodeView: cordoned, and whether its kubelet has stopped reporting."""
    conditions = (raw.get("status") or {}).get("conditions") or ()
    ready: Mapping[str, Any] = next((c for c in conditions if c.get("type") == "Ready"), {})
    lost = timing.parse(ready.get("lastTransitionTime")) or 0.0 if ready.get("status") == "Unknown" else None
    return NodeView(raw["metadata"]["name"], bool((raw.get("spec") or {}).get("unschedulable")), lost)


def ordinal(name: str) -> int:
    """The number after the last dash; -1 when there is none."""
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else -1


def _named(entries: Any, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((c for c in entries or () if c.get("name") == name), {})
    return found


def _waiting(status: Mapping[str, Any]) -> Waiting | None:
    for key, init in (("initContainerStatuses", True), ("containerStatuses", False)):
        for container in status.get(key) or ():
            waiting = (container.get("state") or {}).get("waiting")
            # PodInitializing of the main container only repeats that an init container is busy.
            if waiting and waiting.get("reason") not in ("PodInitializing", None):
                return Waiting(waiting["reason"], waiting.get("message", ""), init)
    return None


def has_process(status: Mapping[str, Any]) -> bool:
    """Something in the pod may answer on the admin port: the server, or the init container that downloads its model."""
    return status.get("phase") == "Running" or (bool(status.get("podIP")) and _initialising(status))


def _initialising(status: Mapping[str, Any]) -> bool:
    return any("running" in (c.get("state") or {}) for c in status.get("initContainerStatuses") or ())


def _failed_init(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """An init container that ended badly and waits to be tried again; its exit is then the pod's."""
    for container in status.get("initContainerStatuses") or ():
        ended = _last_exit(container)
        if ended and ended.code != 0 and "running" not in (container.get("state") or {}):
            return dict(container)
    return None


def _last_exit(container: Mapping[str, Any]) -> Exit | None:
    for key in ("state", "lastState"):
        ended = (container.get(key) or {}).get("terminated")
        if ended:
            at = timing.parse(ended.get("finishedAt"))
            return Exit(ended.get("exitCode", -1), ended.get("reason", ""), at, ended.get("message", "").strip())
    return None


def _unhealthy(container: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        device.get("resourceID", entry.get("name", ""))
        for entry in container.get("allocatedResourcesStatus") or ()
        for device in entry.get("resources") or ()
        if device.get("health") == "Unhealthy"
    )


def _resize(
    spec: Mapping[str, Any],
    container: Mapping[str, Any],
    conditions: Mapping[Any, Mapping[str, Any]],
    annotations: Mapping[str, str],
) -> ResizeView | None:
    wanted = _named(spec.get("containers"), names.CONTAINER).get("resources") or {}
    applied = container.get("resources") or {}
    if not wanted.get("requests") or not applied.get("requests"):
        return None
    pending = conditions.get("PodResizePending") or {}
    active = pending.get("status") == "True"
    reason: Literal["", "Deferred", "Infeasible"] = ""
    if active and pending.get("reason") in ("Deferred", "Infeasible"):
        reason = pending["reason"]
    return ResizeView(
        wanted=_sizes(wanted),
        applied=_sizes(applied),
        pending=reason,
        message=pending.get("message", "") if active else "",
        since=timing.parse(pending.get("lastTransitionTime")) if active else None,
        refused=annotations.get(names.ANNOTATION_RESIZE_REFUSED, ""),
    )


def _sizes(resources: Mapping[str, Any]) -> dict[str, int]:
    requests = resources.get("requests") or {}
    sizes = {}
    if "cpu" in requests:
        sizes["cpu"] = round(quantity(requests["cpu"]) * 1000)
    if "memory" in requests:
        sizes["memory"] = round(quantity(requests["memory"]))
    return sizes


def _tolerates_cordon(toleration: Mapping[str, Any]) -> bool:
    return toleration.get("effect") in (None, "", "NoSchedule") and (
        toleration.get("key") == CORDON_TAINT
        or (toleration.get("key") in (None, "") and toleration.get("operator") == "Exists")
    )
