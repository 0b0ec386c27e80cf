"""Carries out a plan: children by server-side apply, pods by uid, admin calls. Decides nothing.

A child is written only when what is wanted or what is there has changed since the last write, so a server at rest
causes no writes at all.
"""

import hashlib
import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from carousel_server.admin_state import DrainRequest, PeersUpdate

from carousel_operator import kinds, names, resize, workload
from carousel_operator.actions import (
    Action,
    Close,
    Delete,
    DrainEnded,
    Notice,
    Protect,
    PushLimits,
    PushPeers,
    Quiesce,
    Resize,
    SetMark,
    Undo,
)
from carousel_operator.admin_client import AdminClient, AdminError
from carousel_operator.api import Api, ApiError
from carousel_operator.events import event
from carousel_operator.field_types import format_cpu
from carousel_operator.kinds import Kind
from carousel_operator.metrics import Metrics
from carousel_operator.observe import Reading
from carousel_operator.resource import InferenceServer
from carousel_operator.view import Json

log = logging.getLogger("carousel.operator")


class ForeignChild(Exception):
    """An object of a child's name that belongs to somebody else."""


class NotYet(Exception):
    """Something must pass first, such as the garbage collection of an earlier object of the same name."""


@dataclass
class Applier:
    """Writes to one API server and to pods. `clock` gives seconds since the epoch, for Events only."""

    api: Api
    admin: AdminClient
    metrics: Metrics
    clock: Callable[[], float]
    _settled: dict[str, tuple[str, str]] = field(default_factory=dict)  # uid -> digest wanted, fingerprint there

    async def child(self, reading: Reading, server: InferenceServer, wanted: Json) -> None:
        """Apply one child unless it is as it should be. Raises ForeignChild, NotYet, ApiError."""
        kind, name = kinds.BY_KIND[wanted["kind"]], wanted["metadata"]["name"]
        live = reading.children.get((kind.kind, name))
        if live is None:
            live = await self.api.get(kind, server.namespace, name)
        if live is not None:
            _own(live, server, kind.kind)
        wanted_digest = digest(wanted)
        settled = self._settled.get(live["metadata"]["uid"]) if live is not None else None
        if live is not None and settled == (wanted_digest, fingerprint(live)):
            return
        annotations = {**(wanted["metadata"].get("annotations") or {}), names.ANNOTATION_APPLIED: wanted_digest}
        body = {**wanted, "metadata": {**wanted["metadata"], "annotations": annotations}}
        reading.written = True
        written = await self._apply(kind, body, live)
        self._settled[written["metadata"]["uid"]] = (wanted_digest, fingerprint(written))
        reading.children[kind.kind, name] = written
        edited = settled is not None and settled[0] == wanted_digest and live is not None
        if edited and live is not None and fingerprint(live) != fingerprint(written):
            text = f"{kind.kind} {name} was changed by someone else"
            await self.notice(reading.server, Notice("ChildRepaired", text))

    async def _apply(self, kind: Kind, body: Json, live: Json | None) -> Json:
        try:
            return await self.api.apply(kind, body)
        except ApiError as error:
            if error.status != 422 or live is None or "spec" not in body:
                raise
            # What someone else put into a keyed list can make the merged object invalid: a Service's port under our
            # port's name. Replacing the lists first gives it back to us; a truly invalid spec is refused again.
            meta = live["metadata"]
            patch = {"metadata": {"uid": meta["uid"]}, "spec": body["spec"]}
            await self.api.patch(kind, meta["namespace"], meta["name"], patch)
            return await self.api.apply(kind, body)

    async def strays(self, reading: Reading, server: InferenceServer, wanted: list[Json]) -> None:
        """Delete children that the spec no longer asks for."""
        keep = {(child["kind"], child["metadata"]["name"]) for child in wanted}
        optional = {kind for _, kind in workload.OPTIONAL_KINDS}
        for (kind, name), live in reading.children.items():
            owners = live["metadata"].get("ownerReferences") or ()
            ours = any(owner.get("uid") == server.uid for owner in owners)
            if kind in optional and ours and (kind, name) not in keep and "deletionTimestamp" not in live["metadata"]:
                reading.written = True
                await self.api.delete(kinds.BY_KIND[kind], server.namespace, name, live["metadata"]["uid"])

    async def token(self, reading: Reading, server: InferenceServer) -> None:
        """Make the admin token once; a Secret that is there is never written again."""
        name = names.admin_secret(server.name)
        if ("Secret", name) in reading.children:
            return
        body = workload.admin_secret(server, secrets.token_hex(32))
        reading.written = True
        try:
            reading.children["Secret", name] = await self.api.create(kinds.SECRET, server.namespace, body)
        except ApiError as error:
            if error.status == 409:
                raise NotYet(f"Secret {name} exists but is not labelled as a child yet") from None
            raise

    async def action(self, action: Action, reading: Reading, server: InferenceServer, peers: PeersUpdate) -> bool:
        """Carry out one action. False: the pod did not take it, which the next reconcile sees and decides anew."""
        token = reading.token
        try:
            match action:
                case PushPeers():
                    await self.admin.put_peers(action.ip, token, peers)
                case PushLimits():
                    return await self.admin.put_limits(action.ip, token, action.generation, action.limits)
                case Quiesce():
                    request = DrainRequest(
                        reason=action.reason,
                        remaining_seconds=action.remaining,
                        idle_grace_seconds=action.idle_grace,
                    )
                    await self.admin.quiesce(action.ip, token, request)
                case Close():
                    return await self.admin.close_drain(action.ip, token, force=action.force)
                case Undo():
                    await self.admin.undo(action.ip, token)
                case _:
                    reading.written |= not isinstance(action, Notice | DrainEnded)
                    await self._write(action, reading, server)
        except AdminError:
            return False
        return True

    async def notice(self, server: Json, notice: Notice) -> None:
        """Post an Event, and log it; a lost one is not worth a retry of everything."""
        meta = server["metadata"]
        level = logging.WARNING if notice.warning else logging.INFO
        log.log(level, "%s/%s: %s: %s", meta["namespace"], meta["name"], notice.reason, notice.message)
        try:
            await self.api.create(kinds.EVENT, server["metadata"]["namespace"], event(server, notice, self.clock()))
        except ApiError as error:
            self.metrics.errors.labels(f"event-{error.status}").inc()

    async def _write(self, action: Action, reading: Reading, server: InferenceServer) -> None:
        namespace = server.namespace
        match action:
            case SetMark():
                value = action.mark.dump() if action.mark else None
                await self._annotate(namespace, action.pod, action.uid, names.ANNOTATION_DRAIN, value)
            case Protect():
                value = "true" if action.on else None
                await self._annotate(namespace, action.pod, action.uid, names.ANNOTATION_DO_NOT_DISRUPT, value)
            case Delete():
                await self.api.delete(kinds.POD, namespace, action.pod, action.uid, action.grace)
            case Resize():
                await self._resize(namespace, action)
            case Notice():
                await self.notice(reading.server, action)
            case DrainEnded():
                self.metrics.drains.labels(action.reason, action.outcome).inc()
            case _:
                raise TypeError(f"no way to carry out {action}")

    async def _annotate(self, namespace: str, pod: str, uid: str, key: str, value: str | None) -> None:
        body = {"metadata": {"uid": uid, "annotations": {key: value}}}
        try:
            await self.api.patch(kinds.POD, namespace, pod, body)
        except ApiError as error:
            if error.status not in (404, 409):  # gone, or another pod of that name by now
                raise

    async def _resize(self, namespace: str, action: Resize) -> None:
        memory = str(action.memory_bytes)
        requests = {"memory": memory} | ({"cpu": format_cpu(action.cpu_millis)} if action.cpu_millis else {})
        resources = {"requests": requests, "limits": {"memory": memory}}
        containers = [{"name": names.CONTAINER, "resources": resources}]
        body = {"metadata": {"uid": action.uid}, "spec": {"containers": containers}}
        try:
            await self.api.patch_pod_resize(namespace, action.pod, body)
        except ApiError as error:
            if error.status not in (400, 403, 422):
                raise
            key = names.ANNOTATION_RESIZE_REFUSED
            text = resize.refusal(action.memory_bytes, action.cpu_millis, error.message[:500])
            await self._annotate(namespace, action.pod, action.uid, key, text)


def digest(wanted: Json) -> str:
    """What is wanted, as sixteen hexadecimal digits."""
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(live: Json) -> str:
    """An object without what the cluster changes by itself: status, versions and the record of managers."""
    skipped = ("resourceVersion", "managedFields", "generation", "uid", "creationTimestamp")
    meta = {key: value for key, value in live["metadata"].items() if key not in skipped}
    rest = {key: value for key, value in live.items() if key not in ("status", "metadata", "apiVersion", "kind")}
    return digest({"metadata": meta, **rest})


def _own(live: Json, server: InferenceServer, kind: str) -> None:
    meta = live["metadata"]
    owners = [owner for owner in meta.get("ownerReferences") or () if owner.get("controller")]
    labelled = (meta.get("labels") or {}).get(names.LABEL_SERVER) == server.name
    if any(owner.get("uid") == server.uid for owner in owners):
        if "deletionTimestamp" in meta:
            raise NotYet(f"{kind} {meta['name']} is being deleted")
        return
    if owners and labelled and owners[0].get("kind") == names.KIND:
        raise NotYet(f"{kind} {meta['name']} of an earlier {names.KIND} is not collected yet")
    if owners or not labelled:
        raise ForeignChild(f"{kind} {meta['name']} exists and belongs to someone else; rename it or this object")
