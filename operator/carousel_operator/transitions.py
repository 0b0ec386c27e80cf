"""Events for what has changed between two statuses; a status that stays the same makes none. Pure."""

from collections.abc import Mapping
from typing import Any

from carousel_operator import names
from carousel_operator.actions import Notice
from carousel_operator.diagnosis import FAULTS

WARNINGS = FAULTS | {"NewRevisionFailing"}


def notices(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Notice]:
    """Events on an InferenceServer whose status goes from `old` to `new`."""
    found = [*_ready(old, new), *_rollout(old, new)]
    before, after = _limits(old), _limits(new)
    replicas = new.get("replicas", 0)
    # A pod that has just come starts with the latest limits: that is not news.
    steady = old.get("replicas") == replicas == old.get("readyReplicas")
    caught_up = before[0] != after[0] or before[1] < replicas
    if before[0] and after[1] == replicas > 0 and steady and caught_up:
        found.append(Notice("LimitsApplied", f"generation {after[0]}: {after[1]} of {replicas} pods"))
    return found


def _ready(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Notice]:
    before, after = condition(old, names.READY), condition(new, names.READY)
    if after.get("reason") == "InvalidSpec" != before.get("reason"):
        return [Notice("InvalidSpec", after.get("message", ""), warning=True)]
    message = f"{after.get('reason')}: {after.get('message', '')}"
    if after.get("status") == "True":
        return [] if before.get("status") == "True" else [Notice("Ready", message)]
    reason, stopped = after.get("reason"), before.get("status") == "True"
    # A failing revision is told by RolloutStopped.
    if stopped or (reason in FAULTS and before.get("reason") not in WARNINGS):
        return [Notice("NotReady", message, warning=reason in WARNINGS)]
    return []


def _rollout(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Notice]:
    before, after = old.get("revision") or {}, new.get("revision") or {}
    found = []
    changed = before.get("desired") != after.get("desired")
    if before.get("current") and changed and after.get("desired") != before["current"]:  # else it is taken back
        fields = ", ".join((new.get("change") or {}).get("fields") or ())
        found.append(Notice("RolloutStarted", f"revision {before['current']} to {after.get('desired')}: {fields}"))
    if before.get("current") and before["current"] != after.get("current"):
        found.append(Notice("RolloutFinished", f"all pods run revision {after.get('current')}"))
    stopped = condition(new, names.PROGRESSING)
    if stopped.get("reason") == "NewRevisionFailing" != condition(old, names.PROGRESSING).get("reason"):
        found.append(Notice("RolloutStopped", stopped.get("message", ""), warning=True))
    return found


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """One condition by type; empty when it is not there."""
    found: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == kind), {})
    return found


def _limits(status: Mapping[str, Any]) -> tuple[int, int]:
    limits = status.get("limits") or {}
    return limits.get("generation") or 0, limits.get("appliedReplicas") or 0
