"""plan(want, observed, now) -> what to do: a pure function, level-based, the same answer for the same sight.

The order of the actions is the order in which they must happen; a failed one ends the reconcile.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from carousel_server.admin_state import PeersUpdate

from carousel_operator import drain, ledger, resize, rollout
from carousel_operator.actions import (
    Action,
    Close,
    Delete,
    DrainEnded,
    Notice,
    Outcome,
    Protect,
    PushLimits,
    PushPeers,
    Quiesce,
    Resize,
    SetMark,
    Undo,
)
from carousel_operator.ledger import Loss
from carousel_operator.rollout import Rollout
from carousel_operator.timing import clock
from carousel_operator.view import Observed, PodView, RestartReason, SeenBoot
from carousel_operator.want import Want

POLL_SECONDS = 15.0
PLANNED = frozenset({"rollout", "restart", "scale-down", "cordon", "suspend"})


@dataclass(frozen=True)
class Plan:
    """What one reconcile does."""

    replicas: int  # of the StatefulSet
    peers: PeersUpdate  # for the ConfigMap and the pods
    rollout: Rollout
    before: tuple[Action, ...] = ()  # after the ConfigMap, before the other children
    after: tuple[Action, ...] = ()  # after all children
    drains: dict[str, RestartReason] = field(default_factory=dict)
    steps: dict[str, drain.Step] = field(default_factory=dict)
    resizes: dict[str, resize.ResizeStep] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    seen: tuple[SeenBoot, ...] = ()
    poll: float | None = POLL_SECONDS  # seconds until pods are asked again; None: nothing to ask

    @property
    def actions(self) -> tuple[Action, ...]:
        """All actions in their order."""
        return self.before + self.after


def plan(want: Want, observed: Observed, now: float) -> Plan:
    """Decide everything for one InferenceServer at the time `now` (seconds since the epoch)."""
    choice = rollout.choose(want, observed, now)
    pods = {p.name: p for p in observed.pods}
    steps = {name: drain.step(pods[name], why, want.drain, now) for name, why in choice.drains.items()}
    leaving = _leaving(want, choice, pods, steps)
    losses = [*ledger.unannounced(observed), *_planned_losses(choice, pods, leaving, observed)]
    peers = ledger.update(observed, losses, want.addresses, now)
    resizes = _resizes(want, observed, choice)
    before = [
        PushPeers(p.name, p.ip)
        for p in observed.pods
        if p.admin is not None and not p.initialising and p.admin.peers_generation != peers.generation
    ]
    after = [
        *_limits(want, observed, resizes),
        *_resize_actions(want, pods, resizes),
        *_protection(observed),
        *_undo(choice, observed),
        *_drain_actions(choice, pods, steps),
        *_removals(want, choice, pods, steps, leaving),
        *(_notice(loss) for loss in losses if loss.sessions or loss.cause not in PLANNED),
    ]
    lost = {loss.boot_id for loss in losses} | {entry.boot_id for entry in peers.lost}
    return Plan(
        replicas=_replicas(want, observed, choice, leaving),
        peers=peers,
        rollout=choice.rollout,
        before=tuple(before),
        after=tuple(after),
        drains=choice.drains,
        steps=steps,
        resizes=resizes,
        losses=tuple(losses),
        seen=ledger.remember(observed.pods, observed.seen, lost),
        poll=_poll(observed, choice, resizes),
    )


def _leaving(
    want: Want, choice: rollout.Choice, pods: dict[str, PodView], steps: dict[str, drain.Step]
) -> tuple[str, ...]:
    """Pods that go in this reconcile. A suspended server's pods go together, when the last one may."""
    ready = tuple(name for name, step in steps.items() if step.do == "remove")
    if want.suspend and not (want.blocked or want.preview):
        alive = [p for p in pods.values() if not p.deleting]
        return ready if len(ready) == len(alive) else ()
    return ready


def _planned_losses(
    choice: rollout.Choice, pods: dict[str, PodView], leaving: Iterable[str], observed: Observed
) -> list[Loss]:
    known = {entry.boot_id for entry in observed.peers.lost}
    found = (ledger.removal_unseen(pods[name], choice.drains[name], observed.seen) for name in leaving)
    unannounced = {loss.boot_id for loss in ledger.unannounced(observed)}
    return [loss for loss in found if loss and loss.boot_id not in known | unannounced]


def _replicas(want: Want, observed: Observed, choice: rollout.Choice, leaving: tuple[str, ...]) -> int:
    applied = observed.statefulset_replicas
    if applied is None:
        return want.size
    if want.blocked or want.preview:
        return applied
    if want.suspend:
        alive = [p for p in observed.pods if not p.deleting]
        return 0 if not alive or leaving else applied
    if not choice.step_down:
        return want.size
    victim = observed.pod(applied - 1)
    gone = victim is None or victim.deleting or victim.name in leaving
    return applied - 1 if gone else applied


def _resizes(want: Want, observed: Observed, choice: rollout.Choice) -> dict[str, resize.ResizeStep]:
    if want.blocked or want.preview:
        return {}
    return {
        p.name: resize.step(p, want)
        for p in observed.pods
        if not p.deleting and p.ordinal < want.size and p.revision == want.revision
    }


def _limits(want: Want, observed: Observed, resizes: dict[str, resize.ResizeStep]) -> list[Action]:
    if want.blocked or want.preview:
        return []
    return [
        PushLimits(p.name, p.ip, want.limits_generation, want.limits)
        for p in observed.pods
        if p.admin is not None
        and not p.initialising
        and p.admin.limits_generation < want.limits_generation
        and (p.name not in resizes or resizes[p.name].may_push_limits)
    ]


def _resize_actions(want: Want, pods: dict[str, PodView], resizes: dict[str, resize.ResizeStep]) -> list[Action]:
    return [
        Resize(name, pods[name].uid, want.cpu_millis, want.memory_bytes)
        for name, step in resizes.items()
        if step.state == "ask" and want.memory_bytes is not None
    ]


def _protection(observed: Observed) -> list[Action]:
    """A node autoscaler may not move a pod while it loads: it would begin again from nothing."""
    alive = [p for p in observed.pods if not p.deleting]
    begin = (Protect(p.name, p.uid, True) for p in alive if p.on_its_way and not p.protected)
    return [*begin, *(Protect(p.name, p.uid, False) for p in alive if p.ready and p.protected)]


def _undo(choice: rollout.Choice, observed: Observed) -> list[Action]:
    """Pods that drain and are wanted: the server first, then the mark, so that a failure is tried again."""
    actions: list[Action] = []
    for pod in observed.pods:
        if pod.deleting or pod.name in choice.drains:
            continue
        told = pod.admin.drain if pod.admin is not None else None
        ours = told is not None and told.reason in ("rollout", "restart", "scale-down", "cordon", "suspend")
        if pod.admin is not None and ours:
            actions.append(Undo(pod.name, pod.ip))
        if pod.mark is not None and (pod.admin is not None or pod.nothing_to_drain):
            actions += [
                SetMark(pod.name, pod.uid, None),
                DrainEnded(pod.mark.reason, "undone", pod.name),
                Notice("DrainUndone", f"{pod.name} is wanted again with {drain.load(pod)}", pod=pod.name),
            ]
    return actions


def _drain_actions(choice: rollout.Choice, pods: dict[str, PodView], steps: dict[str, drain.Step]) -> list[Action]:
    actions: list[Action] = []
    for name, step in steps.items():
        pod, reason = pods[name], choice.drains[name]
        if step.do == "mark":
            actions.append(SetMark(name, pod.uid, step.mark))
            if pod.mark is None and step.mark is not None:
                until = (
                    f", until {clock(step.mark.deadline)}" if step.mark.deadline is not None else ", without deadline"
                )
                actions.append(Notice("DrainStarted", f"{name}: {reason}, {drain.load(pod)}{until}"))
        elif step.do == "quiesce":
            actions.append(Quiesce(name, pod.ip, reason, step.remaining, step.idle_grace))
        elif step.do == "close":
            actions.append(Close(name, pod.ip, step.force))
            if step.force:
                actions.append(Notice("DrainForced", f"{name}: {step.why}", warning=True, pod=name))
    return actions


def _removals(
    want: Want,
    choice: rollout.Choice,
    pods: dict[str, PodView],
    steps: dict[str, drain.Step],
    leaving: tuple[str, ...],
) -> list[Action]:
    actions: list[Action] = []
    for name in leaving:
        pod, reason = pods[name], choice.drains[name]
        outcome = _outcome(pod, steps[name])
        if reason not in ("scale-down", "suspend"):
            actions.append(Delete(name, pod.uid, want.drain.grace_seconds))
        actions += [
            DrainEnded(reason, outcome),
            Notice("DrainFinished", f"{name}: {reason}, {steps[name].why} ({drain.load(pod)} left)"),
        ]
    for pod in pods.values():
        if rollout.gpu_failed(pod) and pod.name not in leaving and not (want.blocked or want.preview):
            actions.append(Delete(pod.name, pod.uid, want.drain.grace_seconds))
    return actions


def _outcome(pod: PodView, step: drain.Step) -> Outcome:
    if pod.nothing_to_drain:
        return "nothing"
    forced = pod.admin is None or bool(pod.busy_requests)
    return "deadline" if forced else "quiet"


def _notice(loss: Loss) -> Notice:
    unplanned = loss.cause not in PLANNED
    return Notice("SessionsLost", f"{loss.pod} boot {loss.boot_id}: {loss.held}, {loss.cause}", warning=unplanned)


def _poll(observed: Observed, choice: rollout.Choice, resizes: dict[str, resize.ResizeStep]) -> float | None:
    if not observed.pods:
        return None
    busy = choice.drains or any(p.mark or p.deleting for p in observed.pods)
    resizing = any(step.state in ("ask", "waiting") for step in resizes.values())
    return drain.POLL_SECONDS if busy or resizing else POLL_SECONDS
