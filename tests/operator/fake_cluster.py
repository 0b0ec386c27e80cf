"""Stand-ins for scheduler and kubelet over a real API server: pods get a node, an address and a FakeServer."""

import asyncio
import base64
import contextlib
import itertools
import os
from datetime import UTC, datetime
from typing import Any

from carousel_operator import kinds, names
from carousel_operator.api import MERGE, Api, ApiError
from carousel_server.admin_state import PeersUpdate

from tests.operator.fake_server import FakeServer

Object = dict[str, Any]
_networks = itertools.count(1)
WORKER = 77 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))  # of the tests that run side by side


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class FakeCluster:
    """Brings the pods of one namespace to life until it is stopped."""

    def __init__(self, api: Api, namespace: str, port: int) -> None:
        self.api, self.namespace, self.port = api, namespace, port
        self.servers: dict[str, FakeServer] = {}  # pod uid -> server
        self.by_name: dict[str, FakeServer] = {}
        self.free_gpus = 1000
        self.node_memory = "512Gi"
        self.hold_revisions: dict[str, str] = {}  # revision -> waiting reason of its containers
        self.born: list[str] = []  # pod names in the order of their start
        self.sessions_at_birth = 0
        self.node = f"{namespace}-node"
        self._network = next(_networks)
        self._task: asyncio.Task[None] | None = None
        self._addresses = itertools.count(1)
        self.errors: list[str] = []

    async def __aenter__(self) -> "FakeCluster":
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}}
        await self.api.apply(kinds.NODE, node)
        await self.set_node("True")
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        for server in self.servers.values():
            await server.stop()

    async def set_node(self, ready: str) -> None:
        """The node's Ready condition: True, False or Unknown."""
        condition = {"type": "Ready", "status": ready, "reason": "Test", "lastTransitionTime": _now()}
        condition |= {"lastHeartbeatTime": _now(), "message": ""}
        room = {"cpu": "64", "memory": self.node_memory, "pods": "110", "nvidia.com/gpu": "8"}
        body = {"status": {"conditions": [condition], "capacity": room, "allocatable": room}}
        await self.api._call("PATCH", kinds.NODE.path(None, self.node, "status"), body=body, content_type=MERGE)

    async def cordon(self, on: bool) -> None:
        """As kubectl cordon and uncordon."""
        body = {"spec": {"unschedulable": on or None}}
        await self.api._call("PATCH", kinds.NODE.path(None, self.node), body=body, content_type=MERGE)

    async def restart_container(self, name: str, code: int, reason: str = "Error") -> FakeServer:
        """As a kubelet after a container died: the same pod, another boot."""
        pod = await self.api.get(kinds.POD, self.namespace, name)
        assert pod is not None
        uid = pod["metadata"]["uid"]
        dead = self.servers.pop(uid)
        await dead.stop()
        server = FakeServer(dead.ip, dead.port, dead.token, dead.ordinal)
        await server.start()
        self.servers[uid] = self.by_name[name] = server
        container = self._container(pod, {"running": {"startedAt": _now()}}, ready=True)
        ended = {"exitCode": code, "reason": reason, "finishedAt": _now(), "startedAt": _now()}
        container |= {"restartCount": 1, "lastState": {"terminated": ended}}
        await self._status(pod, container, "Running", dead.ip)
        return server

    async def _run(self) -> None:
        while True:
            try:
                for pod in await self.api.list_all(kinds.POD, self.namespace):
                    await self._care(pod)
            except ApiError as error:
                if error.status not in (404, 409):
                    self.errors.append(str(error))
            await asyncio.sleep(0.1)

    async def _care(self, pod: Object) -> None:
        meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
        if "deletionTimestamp" in meta:
            server = self.servers.pop(meta["uid"], None)
            if server is not None:
                await server.stop()
            await self.api.delete(kinds.POD, self.namespace, meta["name"], meta["uid"], 0)
            return
        if not spec.get("nodeName"):
            await self._schedule(pod)
            return
        waiting = self.hold_revisions.get(meta["labels"].get(names.LABEL_REVISION, ""))
        if waiting:
            if status.get("phase") != "Pending" or not status.get("containerStatuses"):
                await self._status(
                    pod, self._container(pod, {"waiting": {"reason": waiting, "message": "no"}}), "Pending"
                )
            return
        if meta["uid"] not in self.servers:
            await self._start(pod)
        await self._resize(pod)

    async def _schedule(self, pod: Object) -> None:
        meta = pod["metadata"]
        bound = [p for p in await self.api.list_all(kinds.POD, self.namespace) if p["spec"].get("nodeName")]
        if len(bound) >= self.free_gpus:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
                "lastTransitionTime": _now(),
            }
            known = [c for c in (pod.get("status") or {}).get("conditions") or () if c["type"] == "PodScheduled"]
            if not known or known[0]["status"] != "False":
                waiting = {"status": {"conditions": [condition]}}
                await self.api.patch(kinds.POD, self.namespace, meta["name"], waiting, "status")
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
        path = kinds.POD.path(self.namespace, meta["name"], "binding")
        await self.api._call("POST", path, body=body)

    async def _start(self, pod: Object) -> None:
        meta = pod["metadata"]
        owner = meta["labels"][names.LABEL_SERVER]
        secret = await self.api.get(kinds.SECRET, self.namespace, names.admin_secret(owner))
        config = await self.api.get(kinds.CONFIG_MAP, self.namespace, names.config_map(owner))
        if secret is None or config is None:
            return
        token = base64.b64decode(secret["data"]["token"]).decode()
        ip = f"127.{WORKER}.{self._network}.{next(self._addresses)}"
        server = FakeServer(ip, self.port, token, int(meta["name"].rpartition("-")[2]))
        server.peers = PeersUpdate.model_validate_json(config["data"]["peers.json"])
        first = config["data"]["server.toml"].split("generation = ")[1]
        server.limits_generation = int(first.splitlines()[0])
        server.sessions = self.sessions_at_birth
        await server.start()
        self.servers[meta["uid"]] = self.by_name[meta["name"]] = server
        running = self._container(pod, {"running": {"startedAt": _now()}}, ready=True)
        await self._status(pod, running, "Running", ip)
        self.born.append(meta["name"])

    def _container(self, pod: Object, state: Object, *, ready: bool = False) -> Object:
        container = pod["spec"]["containers"][0]
        return {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": ready,
            "started": ready,
            "restartCount": 0,
            "state": state,
            "resources": container.get("resources", {}),
        }

    async def _status(self, pod: Object, container: Object, phase: str, ip: str = "") -> None:
        ready = "True" if container["ready"] else "False"
        conditions = [
            {"type": kind, "status": ready, "lastTransitionTime": _now()} for kind in ("Ready", "ContainersReady")
        ]
        conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": _now()})
        status: Object = {"phase": phase, "conditions": conditions, "containerStatuses": [container]}
        if ip:
            status |= {"podIP": ip, "podIPs": [{"ip": ip}], "startTime": _now()}
        await self.api.patch(kinds.POD, self.namespace, pod["metadata"]["name"], {"status": status}, "status")

    async def _resize(self, pod: Object) -> None:
        """As a kubelet with room: what the spec asks becomes what the container has."""
        container = pod["spec"]["containers"][0]
        known = (pod.get("status") or {}).get("containerStatuses") or ()
        if known and known[0].get("resources") != container.get("resources"):
            body = {"status": {"containerStatuses": [{**known[0], "resources": container["resources"]}]}}
            await self.api.patch(kinds.POD, self.namespace, pod["metadata"]["name"], body, "status")
