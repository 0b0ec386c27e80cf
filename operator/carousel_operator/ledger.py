"""The peers table and the ledger of lost boots: who serves which boot, and which boots are gone and why. Pure.

A boot is put into the ledger once; being there is what makes a server answer 410 instead of 503.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from carousel_server.admin_state import LossCause, LostBoot, Peer, PeersUpdate

from carousel_operator import timing
from carousel_operator.view import Observed, PodView, SeenBoot

KEPT_BOOTS = 64  # the contract's length of PeersUpdate.lost
TERMINATING = "Terminating"


@dataclass(frozen=True)
class Loss:
    """A boot that ends, with what it held at its end, or when it was last seen."""

    pod: str
    ordinal: int
    boot_id: str
    cause: LossCause
    sessions: int
    at_end: bool = False  # counted after its close: exact
    asked: float | None = None  # when it was counted, if not; None: the status has the count, without its time

    @property
    def held(self) -> str:
        """`3 sessions`, and how fresh the count is: what came or went since is not in it."""
        count = f"{self.sessions} session{'s' * (self.sessions != 1)}"
        if self.at_end:
            return count
        return f"{count} by the last status" if self.asked is None else f"{count} as of {timing.clock(self.asked)}"


def unannounced(observed: Observed) -> list[Loss]:
    """Boots that were seen before, that are gone now, and that nobody announced."""
    known = {lost.boot_id for lost in observed.peers.lost}
    alive = {pod.admin.boot_id for pod in observed.pods if pod.admin}
    losses = []
    for seen in observed.seen:
        if seen.boot_id in known or seen.boot_id in alive:
            continue
        cause = _fate(seen, observed)
        if cause is not None:
            losses.append(_last_seen(seen, cause))
    return losses


def fresher(seen: Iterable[SeenBoot], asked: Mapping[str, tuple[int, float]]) -> tuple[SeenBoot, ...]:
    """The boots of the status with what they said since: `asked` has sessions and time by boot id."""
    found = []
    for boot in seen:
        sessions, at = asked.get(boot.boot_id, (boot.sessions, None))
        found.append(replace(boot, sessions=sessions, asked=at))
    return tuple(found)


def _last_seen(seen: SeenBoot, cause: LossCause) -> Loss:
    return Loss(seen.pod, seen.ordinal, seen.boot_id, cause, seen.sessions, asked=seen.asked)


def uncounted(observed: Observed, counted: Iterable[Loss]) -> list[Loss]:
    """Boots in the ledger that the status still shows as alive: an operator ended between the two writes.

    `counted` are those that this process will count itself, with fresher numbers.
    """
    causes = {entry.boot_id: entry.cause for entry in observed.peers.lost}
    skip = {loss.boot_id for loss in counted}
    return [
        _last_seen(seen, causes[seen.boot_id])
        for seen in observed.seen
        if seen.boot_id in causes and seen.boot_id not in skip
    ]


def _fate(seen: SeenBoot, observed: Observed) -> LossCause | None:
    """Why the process is gone, or None while it may still be alive."""
    pod = next((p for p in observed.pods if p.uid == seen.uid), None)
    if pod is None:
        node = observed.nodes.get(seen.node)
        if node is not None and node.lost_since is not None:
            return "node-lost"
        return "eviction" if seen.state == TERMINATING else "unknown"
    if pod.admin is None and pod.running:
        return None
    return exit_cause(pod)


def exit_cause(pod: PodView) -> LossCause:
    """What ended the container that ran last in this pod."""
    if pod.last_exit is not None and pod.last_exit.out_of_memory:
        return "out-of-memory"
    if pod.mark is not None and pod.deleting:
        return pod.mark.reason
    if pod.deleting or pod.evicted:
        return "eviction"
    if pod.last_exit is not None:
        return "crash"
    return "unknown"


def removal(pod: PodView, cause: LossCause) -> Loss | None:
    """The loss that the operator itself is about to cause; None for a boot that never served."""
    if pod.admin is None or pod.admin.phase == "loading":
        return None
    return Loss(pod.name, pod.ordinal, pod.admin.boot_id, cause, pod.sessions, at_end=True)


def removal_unseen(pod: PodView, cause: LossCause, seen: Iterable[SeenBoot]) -> Loss | None:
    """As `removal`, for a pod that does not answer now but did before."""
    found = removal(pod, cause)
    if found is not None:
        return found
    before = next((s for s in seen if s.uid == pod.uid), None)
    return _last_seen(before, cause) if before else None


def update(observed: Observed, losses: Iterable[Loss], addresses: Mapping[int, str], now: float) -> PeersUpdate:
    """The table that pods should have. Its generation moves only when its content does.

    `addresses` maps each ordinal to `host:port` of its client port.
    """
    old = observed.peers
    known = {lost.boot_id for lost in old.lost}
    added = [
        LostBoot(ordinal=loss.ordinal, boot_id=loss.boot_id, cause=loss.cause, at=timing.rfc3339(now))
        for loss in losses
        if loss.boot_id not in known
    ]
    lost = [*old.lost, *added][-KEPT_BOOTS:]
    gone = {entry.boot_id for entry in lost}
    earlier = {peer.ordinal: peer for peer in old.peers}
    peers = []
    for pod in sorted(observed.pods, key=lambda p: p.ordinal):
        peer = _peer(pod, earlier.get(pod.ordinal), addresses)
        if peer is not None and peer.boot_id not in gone:
            peers.append(peer)
    new = PeersUpdate(generation=old.generation, peers=peers, lost=lost)
    return old if new == old else new.model_copy(update={"generation": old.generation + 1})


def _peer(pod: PodView, earlier: Peer | None, addresses: Mapping[int, str]) -> Peer | None:
    address = addresses.get(pod.ordinal)
    if address is None:
        return None
    if pod.admin is None:
        # One missed answer must not make the table flap: the boot stays, without new work.
        return earlier.model_copy(update={"accepting": False}) if earlier and not pod.nothing_to_drain else None
    accepting = pod.admin.phase == "serving" and pod.ready and not pod.deleting and pod.admin.drain is None
    return Peer(ordinal=pod.ordinal, address=address, boot_id=pod.admin.boot_id, accepting=accepting)


def remember(pods: Iterable[PodView], seen: Iterable[SeenBoot], lost: Iterable[str]) -> tuple[SeenBoot, ...]:
    """The boots to remember until the next reconcile: what answers now, and what did not answer but is not lost."""
    gone = set(lost)
    before = {s.uid: s for s in seen}
    kept = []
    for pod in pods:
        state = TERMINATING if pod.deleting else ""
        if pod.admin is not None and pod.admin.phase != "loading" and pod.admin.boot_id not in gone:
            boot = pod.admin.boot_id
            kept.append(SeenBoot(pod.name, pod.uid, pod.ordinal, boot, pod.sessions, pod.node, state))
        elif pod.uid in before and before[pod.uid].boot_id not in gone and pod.admin is None:
            kept.append(replace(before[pod.uid], state=state or before[pod.uid].state))
    return tuple(kept)
