"""Everything one reconcile reads: the object, its children, pods, nodes, referenced Secrets, and each pod's state."""

import asyncio
import base64
import binascii
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from carousel_server.admin_state import AdminState
from carousel_server.limits import Limits

from carousel_operator import config_map, kinds, names, pods, revision
from carousel_operator.admin_client import AdminClient
from carousel_operator.api import Api, ApiError
from carousel_operator.kinds import Kind
from carousel_operator.resource import InferenceServer, InferenceServerSpec
from carousel_operator.view import Json, NodeView, Observed, SeenBoot

ADMIN_CALLS_AT_ONCE = 16


@dataclass
class Reading:
    """Raw objects of one InferenceServer."""

    server: Json
    children: dict[tuple[str, str], Json] = field(default_factory=dict)  # (kind, name)
    pods: list[Json] = field(default_factory=list)
    nodes: dict[str, NodeView] = field(default_factory=dict)
    data: dict[tuple[str, str], dict[str, str] | None] = field(default_factory=dict)  # referenced objects
    claims: dict[str, bool] = field(default_factory=dict)  # referenced claim -> exists
    states: dict[str, tuple[AdminState | None, str]] = field(default_factory=dict)  # pod uid -> state, error
    written: bool = False  # something here was written since: pods are no longer as they were read

    def again(self) -> "Reading":
        """The same objects, with what no watch covers to be read anew."""
        return replace(self, data={}, claims={}, states={})

    @property
    def token(self) -> str:
        """The admin token, "" before it is made."""
        name = self.server["metadata"]["name"]
        secret = self.children.get(("Secret", names.admin_secret(name)))
        return decode(((secret or {}).get("data") or {}).get("token", ""))

    @property
    def statefulset(self) -> Json | None:
        """The StatefulSet, if there is one."""
        return self.children.get(("StatefulSet", self.server["metadata"]["name"]))

    @property
    def config(self) -> dict[str, str]:
        """`data` of the ConfigMap, empty before it is made."""
        found = self.children.get(("ConfigMap", names.config_map(self.server["metadata"]["name"])))
        return dict((found or {}).get("data") or {})


class Observer:
    """Reads from one API server and from pods."""

    def __init__(self, api: Api, admin: AdminClient, *, cluster_wide: bool) -> None:
        self._api = api
        self._admin = admin
        self._reads_nodes = cluster_wide
        self.pod_monitors = False  # whether the cluster has the kind; refreshed by the process
        self._calls = asyncio.Semaphore(ADMIN_CALLS_AT_ONCE)

    async def server(self, namespace: str, name: str) -> Json | None:
        """The InferenceServer, or None when it is gone."""
        return await self._api.get(kinds.SERVER, namespace, name)

    async def read(self, raw: Json) -> Reading:
        """All raw objects around an InferenceServer. Raises ApiError when the API server does not answer."""
        meta = raw["metadata"]
        namespace, selector = meta["namespace"], f"{names.LABEL_SERVER}={meta['name']}"
        wanted = [k for k in kinds.CHILDREN if k is not kinds.POD_MONITOR or self.pod_monitors]
        lists = await asyncio.gather(*(self._list(k, namespace, selector) for k in (kinds.POD, *wanted)))
        reading = Reading(raw, pods=lists[0])
        for kind, found in zip(wanted, lists[1:], strict=True):
            for item in found:
                reading.children[kind.kind, item["metadata"]["name"]] = item
        reading.nodes = await self._nodes({pod["spec"].get("nodeName", "") for pod in reading.pods} - {""})
        return reading

    async def read_references(self, reading: Reading, spec: InferenceServerSpec) -> None:
        """The Secrets, ConfigMaps and claims that the spec names: they carry no label, so no watch tells of them."""
        namespace = reading.server["metadata"]["namespace"]
        for kind_name, name in _objects(spec):
            found = await self._api.get(kinds.BY_KIND[kind_name], namespace, name)
            reading.data[kind_name, name] = None if found is None else dict(found.get("data") or {})
        for claim in _claims(spec):
            reading.claims[claim] = await self._api.get(kinds.CLAIM, namespace, claim) is not None

    async def ask(self, reading: Reading) -> None:
        """Every pod's admin state, each by its own address."""

        async def one(pod: Json) -> None:
            async with self._calls:
                ip = (pod.get("status") or {}).get("podIP", "")
                reading.states[pod["metadata"]["uid"]] = await self._admin.state(ip, reading.token)

        asked = [pod for pod in reading.pods if pods.has_process(pod.get("status") or {})]
        await asyncio.gather(*(one(pod) for pod in asked))

    async def _list(self, kind: Kind, namespace: str, selector: str) -> list[Json]:
        try:
            return await self._api.list_all(kind, namespace, selector)
        except ApiError as error:
            if error.status == 404:
                return []  # an older cluster without this kind
            raise

    async def _nodes(self, wanted: Iterable[str]) -> dict[str, NodeView]:
        if not self._reads_nodes:
            return {}
        found = {}
        for name in sorted(wanted):
            try:
                raw = await self._api.get(kinds.NODE, None, name)
            except ApiError as error:
                if error.status == 403:
                    self._reads_nodes = False
                    return {}
                raise
            if raw is not None:
                found[name] = pods.node_view(raw)
        return found


def observed(reading: Reading, server: InferenceServer) -> Observed:
    """The typed view that a plan is made from."""
    views = []
    for raw in reading.pods:
        state, error = reading.states.get(raw["metadata"]["uid"], (None, "it does not run"))
        views.append(pods.view(raw, state, error))
    statefulset = reading.statefulset
    return Observed(
        pods=tuple(sorted((v for v in views if v.ordinal >= 0), key=lambda v: v.ordinal)),
        statefulset_replicas=None if statefulset is None else (statefulset.get("spec") or {}).get("replicas", 1),
        peers=config_map.read_peers({"data": reading.config}),
        seen=seen_boots(server.status),
        nodes=reading.nodes,
        current_revision=(server.status.get("revision") or {}).get("current", ""),
        missing=missing(reading, server.spec),
    )


def seen_boots(status: Mapping[str, Any]) -> tuple[SeenBoot, ...]:
    """The boots that the status remembers."""
    return tuple(
        SeenBoot(
            pod["name"],
            pod.get("uid", ""),
            pods.ordinal(pod["name"]),
            pod["bootId"],
            pod.get("sessions", 0),
            pod.get("node", ""),
            pod.get("state", ""),
        )
        for pod in status.get("pods") or ()
        if pod.get("bootId")
    )


def missing(reading: Reading, spec: InferenceServerSpec) -> tuple[str, ...]:
    """What the spec refers to and the cluster lacks."""
    gone = [f"{kind} {name}" for (kind, name), data in reading.data.items() if data is None]
    for ref in revision.references(spec):
        held = reading.data.get((ref.kind, ref.name))
        if ref.optional:
            gone = [text for text in gone if text != f"{ref.kind} {ref.name}"]
        elif held is not None and ref.key is not None and ref.key not in held:
            gone.append(f"{ref.kind} {ref.name} key {ref.key}")
    token = spec.model.source.hf.token_secret_ref if spec.model.source.hf else None
    if token is not None:
        held = reading.data.get(("Secret", token.name))
        if held is not None and token.key not in held:
            gone.append(f"Secret {token.name} key {token.key}")
    return (*gone, *(f"PersistentVolumeClaim {name}" for name, there in reading.claims.items() if not there))


def limits_of(config: Mapping[str, str]) -> tuple[int, Limits | None]:
    """Generation and limits of a ConfigMap's server.toml; no limits when it cannot be read."""
    generation = config_map.read_generation({"data": config})
    try:
        return generation, Limits.model_validate(tomllib.loads(config.get(config_map.SERVER_TOML, ""))["limits"])
    except (ValueError, KeyError):
        return generation, None


def decode(text: str) -> str:
    """A Secret's base64 value as text; "" when it is neither."""
    try:
        return base64.b64decode(text).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _objects(spec: InferenceServerSpec) -> list[tuple[str, str]]:
    wanted = [(ref.kind, ref.name) for ref in revision.references(spec)]
    if spec.auth.api_keys_secret_ref is not None:
        wanted.append(("Secret", spec.auth.api_keys_secret_ref.name))
    hub = spec.model.source.hf
    if hub is not None and hub.token_secret_ref is not None:
        wanted.append(("Secret", hub.token_secret_ref.name))
    return sorted(set(wanted))


def _claims(spec: InferenceServerSpec) -> list[str]:
    found = [spec.model.source.pvc.claim_name] if spec.model.source.pvc is not None else []
    if spec.cache is not None and spec.cache.claim is not None:
        found.append(spec.cache.claim.claim_name)
    return sorted(set(found))
