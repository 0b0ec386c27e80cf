"""The one reason that a person on call reads first, and the conditions around it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from carousel_operator import names
from carousel_operator.diagnosis import FAULTS, SEVERITY, Diagnosis
from carousel_operator.plan import Plan
from carousel_operator.view import Observed, PodView
from carousel_operator.want import Want


@dataclass(frozen=True)
class Verdict:
    """One condition, before it has times."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True)
class Sight:
    """Everything that the conditions are made from."""

    want: Want
    observed: Observed
    plan: Plan
    diagnoses: Sequence[tuple[PodView, Diagnosis]] = field(default_factory=tuple)
    skew: str = ""  # both totals, when a running server plans others

    @property
    def worst(self) -> Diagnosis | None:
        """The worst pod that is to stay."""
        kept = [d for pod, d in self.diagnoses if pod.ordinal < max(self.want.size, 1)]
        return min(kept, key=lambda d: SEVERITY[d.reason], default=None)

    @property
    def draining(self) -> list[Diagnosis]:
        """Pods that drain or go."""
        return [d for _, d in self.diagnoses if d.reason == "Draining"]

    @property
    def updated(self) -> int:
        """Pods of the desired revision."""
        return sum(p.revision == self.want.revision and not p.deleting for p in self.observed.pods)

    @property
    def whole(self) -> bool:
        """Every wanted pod is ready, of the desired revision, and stays; no pod is too many."""
        kept = [p for p in self.observed.pods if p.ordinal < self.want.size and p.ready and not p.deleting]
        current = all(p.revision == self.want.revision for p in kept)
        return len(kept) == self.want.size == len(self.observed.pods) and current and self.plan.rollout.state == "done"


def conditions(sight: Sight) -> list[Verdict]:
    """All conditions, in the order of names.CONDITIONS."""
    ready = _ready(sight)
    return [ready, _available(sight, ready), _progressing(sight, ready), _degraded(sight), _model(sight), _skew(sight)]


def _ready(sight: Sight) -> Verdict:
    want, plan = sight.want, sight.plan
    if want.blocked:
        return Verdict(names.READY, "False", "LimitsDoNotFit", want.blocked)
    if want.size == 0:
        if sight.observed.pods:
            return Verdict(names.READY, "False", "Draining", _join(sight.draining) or "pods are going")
        why = "spec.suspend is true" if want.suspend else "spec.replicas is 0"
        return Verdict(names.READY, "False", "Suspended", f"{why}; sessions need a pod")
    if sight.whole and not plan.drains:
        return Verdict(names.READY, "True", "Serving", f"{want.size} of {want.size} pods serve")
    return Verdict(names.READY, "False", *_why_not(sight))


def _why_not(sight: Sight) -> tuple[str, str]:
    """Reason and message of a server that is not whole; a fault comes before work in progress."""
    want, plan, worst = sight.want, sight.plan, sight.worst
    if want.hold and (
        plan.rollout.state == "failing" or worst is None or not any(p.ready for p in sight.observed.pods)
    ):
        return _missing(sight.observed), want.hold
    if plan.rollout.state == "failing":
        cause = f"; {worst.message}" if worst is not None and worst.reason in FAULTS else ""
        return "NewRevisionFailing", f"{plan.rollout.why}{cause}; older pods kept: {len(plan.rollout.outdated)}"
    if worst is not None and worst.reason in FAULTS:
        return worst.reason, _join([d for _, d in sight.diagnoses if d.reason == worst.reason])
    if sight.draining:
        return "Draining", _join(sight.draining)
    if worst is not None and worst.reason == "WaitingForGPU":
        return worst.reason, worst.message
    if plan.rollout.state == "progressing":
        doing = f"; {worst.message}" if worst is not None and worst.reason != "Serving" else ""
        return "RollingOut", f"{sight.updated} of {want.size} pods run revision {want.revision}{doing}"
    if worst is not None and worst.reason != "Serving":
        return worst.reason, _join([d for _, d in sight.diagnoses if d.reason == worst.reason])
    if plan.drains:
        return "Draining", "; ".join(f"{name} begins to drain: {why}" for name, why in plan.drains.items())
    if len(sight.observed.pods) > want.size:
        return "Draining", f"{len(sight.observed.pods)} pods exist, {want.size} wanted: the others are about to go"
    exist = f"{len(sight.observed.pods)} of {want.size} pods exist"
    return "PullingImage", f"{exist}; if this lasts, kubectl describe statefulset {want.name} says who refuses them"


def _available(sight: Sight, ready: Verdict) -> Verdict:
    serving = [p for p in sight.observed.pods if p.ready and not p.deleting]
    answer = f"{len(serving)} of {sight.want.size} pods answer"
    if serving:
        return Verdict(names.AVAILABLE, "True", "Serving", answer)
    return Verdict(names.AVAILABLE, "False", ready.reason, answer)


def _progressing(sight: Sight, ready: Verdict) -> Verdict:
    if sight.plan.rollout.state == "failing":
        return Verdict(names.PROGRESSING, "False", "NewRevisionFailing", sight.plan.rollout.why)
    if ready.reason == "Suspended":
        return Verdict(names.PROGRESSING, "False", "Suspended", ready.message)
    resizing = _resizing(sight)
    if ready.status == "False" and ready.reason not in FAULTS:
        return Verdict(names.PROGRESSING, "True", ready.reason, ready.message)
    if resizing:
        return Verdict(names.PROGRESSING, "True", "Resizing", resizing)
    if ready.status == "False":
        return Verdict(names.PROGRESSING, "False", ready.reason, ready.message)
    return Verdict(names.PROGRESSING, "False", "Serving", "nothing is being changed")


def _resizing(sight: Sight) -> str:
    parts = []
    for name, step in sight.plan.resizes.items():
        if step.state in ("ask", "waiting", "deferred"):
            parts.append(f"{name}: {step.state}{f' ({step.why})' if step.why else ''}")
    asked = [p for p in sight.observed.pods if p.ordinal < sight.want.size and not p.deleting]
    applied = [p for p in asked if p.admin and p.admin.limits_generation == sight.want.limits_generation]
    running = [p for p in asked if p.ready]
    if running and len(applied) < len(running):
        parts.append(
            f"limits generation {sight.want.limits_generation}: {len(applied)} of {len(asked)} pods run with it"
        )
    return "; ".join(parts)


def _degraded(sight: Sight) -> Verdict:
    if sight.want.blocked:
        return Verdict(names.DEGRADED, "True", "LimitsDoNotFit", sight.want.blocked)
    faults = sorted((d for _, d in sight.diagnoses if d.reason in FAULTS), key=lambda d: SEVERITY[d.reason])
    if faults:
        return Verdict(names.DEGRADED, "True", faults[0].reason, _join(faults))
    if sight.want.hold:
        return Verdict(names.DEGRADED, "True", _missing(sight.observed), sight.want.hold)
    if sight.plan.rollout.state == "failing":
        return Verdict(names.DEGRADED, "True", "NewRevisionFailing", sight.plan.rollout.why)
    return Verdict(names.DEGRADED, "False", "Serving", "nothing is wrong")


def _model(sight: Sight) -> Verdict:
    loaded = [
        p for p in sight.observed.pods if p.admin is not None and p.admin.phase in ("serving", "draining", "closed")
    ]
    if loaded:
        told = f"{len(loaded)} of {sight.want.size} pods have loaded it"
        return Verdict(names.MODEL_AVAILABLE, "True", "Serving", told)
    if any(text.startswith("PersistentVolumeClaim") for text in sight.observed.missing):
        return Verdict(names.MODEL_AVAILABLE, "False", "ModelMissing", sight.want.hold)
    for _, found in sight.diagnoses:
        if found.reason in ("ModelMissing", "DownloadingModel", "LoadingModel"):
            status: Literal["False", "Unknown"] = "Unknown" if found.reason == "LoadingModel" else "False"
            return Verdict(names.MODEL_AVAILABLE, status, found.reason, found.message)
    reason = sight.worst.reason if sight.worst is not None else "Suspended" if sight.want.size == 0 else "PullingImage"
    return Verdict(names.MODEL_AVAILABLE, "Unknown", reason, "no pod has loaded it yet")


def _skew(sight: Sight) -> Verdict:
    if sight.skew:
        return Verdict(names.MEMORY_PLAN_SKEW, "True", "LimitsDoNotFit", sight.skew)
    return Verdict(names.MEMORY_PLAN_SKEW, "False", "Serving", "no running server plans other totals")


def _missing(observed: Observed) -> str:
    claims = all(text.startswith("PersistentVolumeClaim") for text in observed.missing)
    return "ModelMissing" if observed.missing and claims else "SecretMissing"


def _join(found: Sequence[Diagnosis]) -> str:
    text = "; ".join(d.message for d in found[:8])
    return f"{text}; and {len(found) - 8} more" if len(found) > 8 else text
