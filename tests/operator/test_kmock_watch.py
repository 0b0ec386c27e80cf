"""kopf's part against a mocked API server: events become keys, faults of a watch lose nothing, nothing is written."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import kmock
import pytest
from carousel_operator import handlers, kinds, names
from kmock._internal.apps import Server

WATCHED = (kinds.SERVER, *handlers.WATCHED)
NAMESPACE = kinds.Kind("v1", "Namespace", "namespaces", namespaced=False)  # kopf waits until it is served


SERVERS = kmock.resource("carousel.dev", "v1alpha1", "inferenceservers")
FAULTS = 2


class Seen:
    """What the handlers put into the queue."""

    def __init__(self) -> None:
        self.keys: list[tuple[str, str]] = []
        self.fresh: list[tuple[str, str]] = []

    def enqueue(self, key: tuple[str, str], fresh: bool) -> None:
        self.keys.append(key)
        if fresh:
            self.fresh.append(key)

    async def wait(self, holds: Callable[[], bool], seconds: float = 45.0) -> None:
        for _ in range(int(seconds * 20)):
            if holds():
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"not seen within {seconds} s; seen: {self.keys}")


def _object(name: str, **labels: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"}
    return {"metadata": {**meta, "labels": labels}, "spec": {}}


class Cluster:
    """A mocked API server and a user who writes to it."""

    def __init__(self, mock: kmock.KubernetesEmulator) -> None:
        self.mock = mock
        self.writes = 0

    async def put(self, kind: kinds.Kind, body: dict[str, Any]) -> None:
        """Create, or merge into what is there."""
        self.writes += 1
        base = str(self.mock.url).rstrip("/")
        async with aiohttp.ClientSession() as session:
            if body["metadata"].get("resourceVersion") == "1":
                answer = await session.post(base + kind.path("ns"), json=body)
            else:
                headers = {"Content-Type": "application/merge-patch+json"}
                path = kind.path("ns", body["metadata"]["name"])
                answer = await session.patch(base + path, json=body, headers=headers)
            assert answer.status < 300, await answer.text()


@asynccontextmanager
async def watching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int | None = None
) -> AsyncIterator[tuple[Cluster, Seen]]:
    """kopf with our handlers against an empty mocked cluster whose first watches of servers end in `fault`."""
    seen = Seen()
    async with kmock.KubernetesEmulator() as cluster, Server(cluster):
        for kind in (*WATCHED, NAMESPACE):
            group, _, version = kind.api_version.rpartition("/")
            cluster.resources[kmock.resource(group, version, kind.plural)] = kmock.ResourceInfo(
                kind=kind.kind, namespaced=kind.namespaced, verbs={"list", "watch", "get", "patch"}
            )
        if fault is not None:
            gone = {"kind": "Status", "code": fault, "status": "Failure", "message": "no"}
            cluster[kmock.action.WATCH, SERVERS][:FAULTS] << ({"type": "ERROR", "object": gone},)
        config = {
            "clusters": [{"name": "c", "cluster": {"server": str(cluster.url)}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        settings = handlers.settings(namespaced=True)
        settings.watching.reconnect_backoff = 0.05
        registry = handlers.registry(seen.enqueue, None)
        task = asyncio.create_task(handlers.watch(registry, settings, ["ns"]))
        try:
            yield Cluster(cluster), seen
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def play(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Cluster, Seen], Coroutine[Any, Any, None]],
    fault: int | None = None,
) -> None:
    """Run one scene."""

    async def scene() -> None:
        async with watching(tmp_path, monkeypatch, fault) as (cluster, seen):
            await act(cluster, seen)

    asyncio.run(asyncio.wait_for(scene(), 150))


def test_a_server_and_its_children_become_the_same_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(cluster: Cluster, seen: Seen) -> None:
        await cluster.put(kinds.SERVER, _object("chat"))
        await seen.wait(lambda: ("ns", "chat") in seen.keys)
        for kind in handlers.WATCHED:
            before = len(seen.keys)
            await cluster.put(kind, _object(f"child-{kind.plural}", **{names.LABEL_SERVER: "chat"}))
            await seen.wait(lambda before=before: len(seen.keys) > before)  # type: ignore[misc]
        assert set(seen.keys) == {("ns", "chat")}

    play(tmp_path, monkeypatch, act)


def test_d36_d41_the_watches_write_nothing_on_any_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(cluster: Cluster, seen: Seen) -> None:
        await cluster.put(kinds.SERVER, _object("chat"))
        await cluster.put(kinds.POD, _object("chat-0", **{names.LABEL_SERVER: "chat"}))
        await seen.wait(lambda: len(seen.keys) >= 2)
        await asyncio.sleep(0.5)
        written = sum(len(cluster.mock[verb]) for verb in ("post", "put", "patch", "delete"))
        assert written == cluster.writes == 2

    play(tmp_path, monkeypatch, act)


def test_children_are_filtered_by_label_on_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(cluster: Cluster, seen: Seen) -> None:
        def asked(kind: kinds.Kind) -> list[Any]:
            return [r for r in cluster.mock["get"] if r.url.path.endswith(f"/{kind.plural}")]

        await seen.wait(lambda: all(asked(kind) for kind in handlers.WATCHED))
        for kind in handlers.WATCHED:
            assert all(r.params.get("labelSelector") == names.LABEL_SERVER for r in asked(kind))

    play(tmp_path, monkeypatch, act)


def test_d45_a_changed_spec_is_told_from_a_changed_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(cluster: Cluster, seen: Seen) -> None:
        await cluster.put(kinds.SERVER, _object("chat"))
        await seen.wait(lambda: bool(seen.keys))  # the list and the watch may both tell of it
        await asyncio.sleep(0.5)
        known = len(seen.keys)
        await cluster.put(kinds.SERVER, {"metadata": {"name": "chat"}, "status": {"x": 1}})
        await seen.wait(lambda: len(seen.keys) > known)
        assert len(seen.fresh) == 1
        await cluster.put(kinds.SERVER, {"metadata": {"name": "chat", "generation": 2}, "spec": {"replicas": 2}})
        await seen.wait(lambda: len(seen.fresh) == 2)

    play(tmp_path, monkeypatch, act)


@pytest.mark.parametrize("fault", [410, 429, 500])
def test_d44_watches_that_end_in_an_error_are_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    async def act(cluster: Cluster, seen: Seen) -> None:
        await seen.wait(lambda: len(cluster.mock[kmock.action.WATCH, SERVERS]) > FAULTS)
        await cluster.put(kinds.SERVER, _object("late"))
        await seen.wait(lambda: ("ns", "late") in seen.keys)

    play(tmp_path, monkeypatch, act, fault)
