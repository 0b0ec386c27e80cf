"""One reconcile: read everything, plan, apply, tell. Level-based; what it keeps in memory only saves writes.

Nothing here decides: the order of steps is all it owns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from carousel_operator import config_map, intent, kinds, ledger, names, revision, status, transitions, workload
from carousel_operator.actions import Action, Close, Notice, Quiesce, SetMark, Undo
from carousel_operator.api import Api, ApiError
from carousel_operator.apply import Applier, ForeignChild
from carousel_operator.ledger import Loss
from carousel_operator.metrics import Metrics
from carousel_operator.observe import Observer, Reading, limits_of, observed
from carousel_operator.plan import POLL_SECONDS, Plan, plan
from carousel_operator.resource import InferenceServer, InvalidSpec
from carousel_operator.resync import Versions, versions
from carousel_operator.status import Rendered
from carousel_operator.view import Json, Key, Observed

SOON = 0.1  # a drain step was taken: the next one follows at once
DEFERRED_SECONDS = 300.0


@dataclass
class Memory:
    """What the process remembers of one object. Losing it costs at most one superfluous write."""

    silent: dict[str, float] = field(default_factory=dict)  # pod uid -> silent since
    asked: dict[str, tuple[int, float]] = field(default_factory=dict)  # boot id -> sessions, when it said so
    answers: frozenset[tuple[str, str, str]] = frozenset()  # pod uid, boot id, phase: what pods said last
    uncounted: list[Loss] = field(default_factory=list)  # in the ledger, not yet in the status
    last_write: float | None = None
    told: set[str] = field(default_factory=set)  # events that no status transition shows
    late_since: float | None = None  # a ready pod has lagged behind limits or sizes since then
    ready: bool = False
    nodes: frozenset[str] = frozenset()
    reading: Reading | None = None  # as good as a new one until an event comes: nothing was written after it
    versions: Versions = frozenset()  # of what the last reconcile left


@dataclass
class Reconciler:
    """Brings one InferenceServer closer to its spec each time it is called."""

    api: Api
    observer: Observer
    applier: Applier
    metrics: Metrics
    clock: Callable[[], float]  # seconds since the epoch
    operator_namespace: str | None = None
    memories: dict[Key, Memory] = field(default_factory=dict)

    async def __call__(self, key: Key, *, changed: bool = True) -> float | None:
        """Reconcile once; seconds until the next look at its pods, or None. Raises ApiError, NotYet.

        `changed` False says that no event came since the last time: then only pods and what no watch covers are asked.
        """
        known = self.memories[key].reading if not changed and key in self.memories else None
        raw = known.server if known else await self.observer.server(*key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            self.memories.pop(key, None)
            return None
        memory = self.memories.setdefault(key, Memory())
        memory.reading, memory.versions = None, frozenset()
        try:
            server = InferenceServer.parse(raw)
            reading = known.again() if known else await self.observer.read(raw)
            return await self._carry_out(reading, server, memory, again=known is not None)
        except InvalidSpec as error:
            await self._tell(raw, status.refused(raw, "InvalidSpec", str(error), self.clock()), memory)
            return None
        except ForeignChild as error:
            await self._tell(raw, status.refused(raw, "InvalidSpec", str(error), self.clock()), memory)
            raise
        except ApiError as error:
            if error.status in (400, 403, 422):
                text = f"the API server refuses {error.message}"
                await self._tell(raw, status.refused(raw, "InvalidSpec", text, self.clock()), memory)
            raise

    async def _carry_out(
        self, reading: Reading, server: InferenceServer, memory: Memory, *, again: bool
    ) -> float | None:
        raw = reading.server
        await self.observer.read_references(reading, server.spec)
        await self.applier.token(reading, server)
        await self.observer.ask(reading)
        now = self.clock()
        answers = memory.answers
        memory.answers = _answers(reading)
        if again and memory.answers != answers:
            return SOON  # a pod is no longer what the last event told of it: read everything
        sight = self._with_silence(observed(reading, server), memory, now)
        sight = replace(sight, seen=ledger.fresher(sight.seen, memory.asked))
        said = ((pod.admin.boot_id, (pod.sessions, now)) for pod in sight.pods if pod.admin is not None)
        memory.asked = {boot.boot_id: memory.asked[boot.boot_id] for boot in sight.seen if boot.boot_id in memory.asked}
        memory.asked |= dict(said)
        memory.nodes = frozenset(pod.node for pod in sight.pods if pod.node)
        digest = revision.secrets_digest(server.spec, reading.data)
        made = intent.form(
            server,
            sight,
            applied=workload.applied_spec(reading.statefulset),
            limits=limits_of(reading.config),
            secrets_digest=digest,
            now=now,
        )
        planned = plan(made.want, sight, now)
        if made.new_change:
            await self._tell(raw, status.render(server, made, sight, replace(planned, losses=()), now), memory)
        carried = not (made.want.blocked or made.want.preview)
        children = workload.children(
            server,
            replicas=planned.replicas,
            plan=made.memory_plan,
            peers=planned.peers,
            limits_generation=made.want.limits_generation,
            secrets_digest=digest,
            pod_monitors=self.observer.pod_monitors,
            operator_namespace=self.operator_namespace,
        )
        await self._config(reading, server, children, carried)
        memory.uncounted += [*ledger.uncounted(sight, memory.uncounted), *planned.losses]
        moved = await self._actions(planned.before, reading, server, planned)
        if carried:
            for child in children:
                if child["kind"] != "ConfigMap":
                    await self.applier.child(reading, server, child)
            await self.applier.strays(reading, server, children)
        moved |= await self._actions(planned.after, reading, server, planned)
        await self._oddities(raw, server, made, planned, sight, memory, now)
        counted = replace(planned, losses=tuple(memory.uncounted))
        wrote = await self._tell(raw, status.render(server, made, sight, counted, now), memory)
        if wrote or not memory.uncounted:
            self._count(memory.uncounted)
            memory.uncounted = []
        memory.versions = versions(reading)
        if moved:
            return SOON
        poll = POLL_SECONDS if planned.poll is None and sight.missing else planned.poll
        if poll == POLL_SECONDS and not reading.written:
            memory.reading = reading
        return poll

    def _with_silence(self, sight: Observed, memory: Memory, now: float) -> Observed:
        silent = {p.uid: memory.silent.get(p.uid, now) for p in sight.pods if p.admin is None and p.started}
        memory.silent = silent
        return replace(sight, pods=tuple(replace(p, silent_since=silent.get(p.uid)) for p in sight.pods))

    async def _config(self, reading: Reading, server: InferenceServer, children: list[Json], carried: bool) -> None:
        """The ConfigMap first: limits and ledger must outlive the pods that are told of them."""
        wanted = next(child for child in children if child["kind"] == "ConfigMap")
        if not carried:
            if not reading.config:
                return
            data = {**wanted["data"], config_map.SERVER_TOML: reading.config.get(config_map.SERVER_TOML, "")}
            wanted = {**wanted, "data": data}
        await self.applier.child(reading, server, wanted)

    async def _actions(
        self, actions: Sequence[Action], reading: Reading, server: InferenceServer, planned: Plan
    ) -> bool:
        """Carry them out; True when a drain moved. After a pod refuses one, its later ones wait."""
        refusing: set[str] = set()
        moved = False
        for action in actions:
            if getattr(action, "pod", "") in refusing:
                continue
            taken = await self.applier.action(action, reading, server, planned.peers)
            if not taken and isinstance(action, Close | Undo | Quiesce):
                refusing.add(action.pod)
            moved |= taken and isinstance(action, Close | Undo | Quiesce | SetMark)
        return moved

    async def _oddities(
        self,
        raw: Json,
        server: InferenceServer,
        made: intent.Intent,
        planned: Plan,
        sight: Observed,
        memory: Memory,
        now: float,
    ) -> None:
        """Events that no transition of the status shows, each once."""
        found: dict[str, Notice] = {}
        if server.spec.monitoring.pod_monitor and not self.observer.pod_monitors:
            text = "spec.monitoring.podMonitor is set but the cluster has no such kind; everything else is applied"
            found["PodMonitorMissing"] = Notice("PodMonitorMissing", text, warning=True)
        for pod in sight.pods:
            step = planned.resizes.get(pod.name)
            if step is not None and step.state == "refused":
                text = f"{pod.name}: {step.why}; it is replaced instead"
                found[f"ResizeRefused {pod.uid}"] = Notice("ResizeRefused", text, warning=True)
        late = _late(made, planned, sight)
        memory.late_since = (now if memory.late_since is None else memory.late_since) if late else None
        if memory.late_since is not None and now - memory.late_since >= DEFERRED_SECONDS:
            text = f"generation {made.want.limits_generation}: {', '.join(late)} could not take it for 5 minutes"
            found[f"LimitsDeferred {made.want.limits_generation}"] = Notice("LimitsDeferred", text, warning=True)
        for name, notice in found.items():
            if name not in memory.told:
                await self.applier.notice(raw, notice)
        memory.told = set(found)

    async def _tell(self, raw: Json, rendered: Rendered, memory: Memory) -> bool:
        """Write the status when it is worth a write, and the events of its transition."""
        now = self.clock()
        memory.ready = rendered.ready.status == "True"
        old = raw.get("status") or {}
        if not status.worth_writing(old, rendered.status, memory.last_write, now):
            return old == rendered.status
        meta = raw["metadata"]
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "status": rendered.status,
        }
        written = await self.api.apply(kinds.SERVER, body, "status")
        memory.last_write = now
        for notice in transitions.notices(old, rendered.status):
            await self.applier.notice(raw, notice)
        raw["status"] = written.get("status") or rendered.status
        raw["metadata"]["resourceVersion"] = written["metadata"].get("resourceVersion", "")
        return True

    def _count(self, losses: Sequence[Loss]) -> None:
        for loss in losses:
            self.metrics.lost_boots.labels(loss.cause).inc()
            self.metrics.lost_sessions.labels(loss.cause).inc(loss.sessions)


def _answers(reading: Reading) -> frozenset[tuple[str, str, str]]:
    states = ((uid, state) for uid, (state, _) in reading.states.items())
    return frozenset((uid, state.boot_id if state else "", state.phase if state else "") for uid, state in states)


def _late(made: intent.Intent, planned: Plan, sight: Observed) -> list[str]:
    """Ready pods that run with older limits, or whose resize waits for room on its node."""
    late = []
    for pod in sight.pods:
        behind = pod.admin is None or pod.admin.limits_generation < made.want.limits_generation
        step = planned.resizes.get(pod.name)
        if pod.ready and not pod.deleting and (behind or (step is not None and step.state == "deferred")):
            late.append(pod.name)
    return late
