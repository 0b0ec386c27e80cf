"""Drives the real reconciler by hand against a real API server and fake pods, and kills it at any write."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from carousel_operator import kinds, names
from carousel_operator.admin_client import AdminClient
from carousel_operator.api import Api, ApiError
from carousel_operator.apply import Applier, ForeignChild, NotYet
from carousel_operator.metrics import Metrics
from carousel_operator.observe import Observer
from carousel_operator.reconcile import Reconciler
from carousel_operator.view import Json

from tests.operator.apiserver import ApiServer
from tests.operator.fake_cluster import FakeCluster

ADMIN_PORT = 18001
_namespaces = itertools.count(1)

Call = Callable[..., Coroutine[Any, Any, Any]]
Holds = Callable[[], Coroutine[Any, Any, bool]]


class Killed(Exception):
    """The operator's process died here."""


class Clock:
    """The real time, moved forward by a test."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class Drive:
    """One namespace with a fake cluster and an operator without watches: `step` reconciles once."""

    def __init__(self, server: ApiServer, api: Api, fake: FakeCluster, namespace: str) -> None:
        self.server, self.api, self.fake, self.namespace = server, api, fake, namespace
        self.clock, self.metrics = Clock(), Metrics()
        self.writes: list[str] = []
        self.kill_at: dict[str, int] | None = None  # write -> the how manieth of its kind the operator dies at
        self.kill_after = False  # whether that write still reaches the server
        self.start()

    def start(self) -> None:
        """A new operator process: nothing in memory."""
        self.writes.clear()
        self.admin = AdminClient(port=ADMIN_PORT)
        observer = Observer(self.api, self.admin, cluster_wide=True)
        applier = Applier(self.api, self.admin, self.metrics, self.clock)
        self._wrap(applier)
        counted: Any = self.counted_api
        self.reconciler = Reconciler(counted, observer, applier, self.metrics, self.clock)

    def _wrap(self, applier: Applier) -> None:
        """Count every write, to the API server and to pods, and die at the chosen one."""
        drive = self

        def counted(name: str, call: Call) -> Call:
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                write = f"{name} {args[0].kind}" if args and isinstance(args[0], kinds.Kind) else name
                drive.writes.append(write)
                if drive.kill_at is not None and drive.writes.count(write) == drive.kill_at.get(write):
                    if drive.kill_after:
                        await call(*args, **kwargs)
                    raise Killed(write)
                return await call(*args, **kwargs)

            return wrapped

        class CountedApi:
            def __getattr__(self, name: str) -> Any:
                found = getattr(drive.api, name)
                writes = ("apply", "patch", "patch_pod_resize", "create", "delete")
                return counted(name, found) if name in writes else found

        class CountedAdmin:
            def __getattr__(self, name: str) -> Any:
                found = getattr(drive.admin, name)
                return counted(name, found) if name not in ("state", "close") else found

        self.counted_api = CountedApi()
        applier.api = self.counted_api  # type: ignore[assignment]
        applier.admin = CountedAdmin()  # type: ignore[assignment]

    async def apply(self, **spec: Any) -> None:
        """As a user: create or change the InferenceServer `chat`. `annotations` go to its metadata."""
        annotations = spec.pop("annotations", {})
        drain = {"idleGrace": "1s"} | spec.pop("drain", {})
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "chat", "namespace": self.namespace, "annotations": annotations},
            "spec": {
                "model": {"source": {"embedded": {}}},
                "image": {"reference": "r/i:1"},
                "resources": {"hostMemory": "4Gi"},
                "drain": drain,
                **spec,
            },
        }
        path = kinds.SERVER.path(self.namespace, "chat")
        query = [("fieldManager", "user"), ("force", "true")]
        await self.api._call("PATCH", path, query=query, body=body, content_type="application/apply-patch+yaml")

    async def step(self) -> float | None:
        """One reconcile; NotYet and passing API errors are what the queue would retry."""
        try:
            return await self.reconciler((self.namespace, "chat"))
        except (NotYet, ForeignChild):
            return None
        except ApiError as error:
            if not error.passing:
                raise
            return None

    async def until(self, holds: Holds, seconds: float = 60.0) -> None:
        """Reconcile until `holds`. Raises TimeoutError with the last status."""
        deadline = time.monotonic() + seconds
        while not await holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.fake.errors[-3:]} {await self.status()}")
            await self.step()
            await asyncio.sleep(0.05)

    async def status(self) -> Json:
        """The status as stored."""
        found = await self.api.get(kinds.SERVER, self.namespace, "chat")
        return dict((found or {}).get("status") or {})

    async def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition as stored."""
        found = {c["type"]: c for c in (await self.status()).get("conditions") or ()}
        return found.get(kind, {}).get("status", ""), found.get(kind, {}).get("reason", "")

    async def ready(self) -> bool:
        """Ready, of the latest generation."""
        found = await self.api.get(kinds.SERVER, self.namespace, "chat")
        assert found is not None
        latest = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
        return latest and (await self.condition("Ready"))[0] == "True"

    async def replaced(self, before: dict[str, str]) -> bool:
        """Ready, and none of the pods in `before` (uids by name) is left."""
        return not set((await self.uids()).values()) & set(before.values()) and await self.ready()

    async def pods(self) -> dict[str, Json]:
        """Pods by name."""
        return {p["metadata"]["name"]: p for p in await self.api.list_all(kinds.POD, self.namespace)}

    async def uids(self) -> dict[str, str]:
        """Pod uids by name."""
        return {name: pod["metadata"]["uid"] for name, pod in (await self.pods()).items()}

    async def mark(self, pod: str) -> str | None:
        """A pod's drain annotation."""
        found = (await self.pods()).get(pod, {}).get("metadata", {})
        mark: str | None = (found.get("annotations") or {}).get(names.ANNOTATION_DRAIN)
        return mark

    async def ledger(self) -> list[tuple[str, str]]:
        """(boot id, cause) of the ConfigMap's lost boots."""
        from carousel_operator import config_map

        found = await self.api.get(kinds.CONFIG_MAP, self.namespace, names.config_map("chat"))
        return [(lost.boot_id, lost.cause) for lost in config_map.read_peers(found).lost]

    async def events(self) -> list[str]:
        """Reasons of the Events on the InferenceServer, in no order."""
        found = await self.api.list_all(kinds.EVENT, self.namespace)
        return [e["reason"] for e in found if e["involvedObject"]["kind"] == names.KIND]

    async def told(self, reason: str) -> bool:
        """Whether such an Event is there. It follows the status: beside a running operator, wait for it."""
        return reason in await self.events()


async def eventually(holds: Holds, seconds: float = 60.0) -> None:
    """Wait until it holds, for what another process brings about. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        await asyncio.sleep(0.2)


@asynccontextmanager
async def driving(server: ApiServer) -> AsyncIterator[Drive]:
    """A Drive in a namespace of its own."""
    namespace = f"drive-{next(_namespaces)}"
    api = await Api.connect(str(server.kubeconfig))
    try:
        await api.create(NAMESPACE, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        async with FakeCluster(api, namespace, ADMIN_PORT) as fake:
            drive = Drive(server, api, fake, namespace)
            yield drive
            await drive.admin.close()
    finally:
        await api.close()


NAMESPACE = kinds.Kind("v1", "Namespace", "namespaces", namespaced=False)


def play(server: ApiServer, act: Callable[[Drive], Coroutine[Any, Any, None]], seconds: float = 200.0) -> None:
    """Run one scene in a fresh event loop."""

    async def scene() -> None:
        async with driving(server) as drive:
            await act(drive)

    asyncio.run(asyncio.wait_for(scene(), seconds))
