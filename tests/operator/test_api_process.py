"""The whole process against a real API server: watches, permissions, probes, signals, and a second operator."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml
from carousel_operator import crd, kinds, names, process
from carousel_operator.api import Api
from carousel_operator.metrics import Metrics
from carousel_operator.presence import Presence
from carousel_operator.schema_check import check_schema

from tests.operator.apiserver import ApiServer, helm
from tests.operator.driving import Drive, eventually, play
from tests.operator.operating import kinds_of, operating, total

pytestmark = pytest.mark.api
CHART = Path(__file__).parents[2] / "charts/carousel"


def _as_operator(server: ApiServer, namespace: str, *flags: str) -> str:
    """A kubeconfig with exactly the permissions that the chart gives, and nothing else."""
    rendered = helm("template", "operator", str(CHART), "--namespace", namespace, *flags)
    wanted = [o for o in yaml.safe_load_all(rendered) if o and o["kind"] in ("ServiceAccount", *RBAC)]
    server.apply(wanted)
    account = next(o for o in wanted if o["kind"] == "ServiceAccount")["metadata"]["name"]
    token = server.kubectl("create", "token", account, "-n", namespace).strip()
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = server.folder / f"kubeconfig-{namespace}"
    path.write_text(yaml.safe_dump(config))
    return str(path)


RBAC = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


@pytest.mark.parametrize("scope", ["namespaced", "cluster-wide"])
def test_the_chart_s_permissions_are_enough_for_a_life_with_a_drain(live: ApiServer, scope: str) -> None:
    async def act(drive: Drive) -> None:
        flags = ["--set", f"namespaces={{{drive.namespace}}}"] if scope == "namespaced" else []
        kubeconfig = await asyncio.to_thread(_as_operator, live, drive.namespace, *flags)
        watched = (drive.namespace,) if scope == "namespaced" else ()
        async with operating(kubeconfig, drive.namespace, watched) as metrics:
            await drive.apply(networkPolicy={"enabled": True})
            await eventually(drive.ready)
            before = await drive.uids()
            await drive.apply(restart={"id": "a"}, resources={"hostMemory": "5Gi"}, limits={"queuedRequests": 3})
            await eventually(lambda: drive.replaced(before))
            await eventually(lambda: drive.told("RolloutFinished"))
        errors = kinds_of(metrics.errors)
        assert "api-403" not in errors
        assert not [kind for kind in errors if kind.startswith("event-")]

    play(live, act)


async def _comes_back(drive: Drive, kind: kinds.Kind, seconds: float) -> None:
    """Delete the child `chat` of this kind and wait until it is there again."""
    found = await drive.api.get(kind, drive.namespace, "chat")
    assert found is not None
    await drive.api.delete(kind, drive.namespace, "chat", found["metadata"]["uid"])

    async def back() -> bool:
        return await drive.api.get(kind, drive.namespace, "chat") is not None

    await eventually(back, seconds)


def test_watches_alone_bring_a_change_within_seconds_and_rest_writes_nothing(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        async with operating(live.kubeconfig, drive.namespace, (drive.namespace,)) as metrics:
            await drive.apply()
            await eventually(drive.ready)
            await asyncio.sleep(3)
            before = total(metrics.writes)
            await asyncio.sleep(6)
            assert total(metrics.writes) == before
            await _comes_back(drive, kinds.BUDGET, 10)

    play(live, act)


def test_what_no_watch_covers_is_put_right_at_the_next_look_and_looks_alone_reconcile_nothing(
    live: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "RESYNC_SECONDS", 1.0)

    async def act(drive: Drive) -> None:
        async with operating(live.kubeconfig, drive.namespace, (drive.namespace,)) as metrics:
            await drive.apply(networkPolicy={"enabled": True})
            await eventually(drive.ready)
            await _comes_back(drive, kinds.NETWORK_POLICY, 20)
            await asyncio.sleep(3)
            before = total(metrics.reconciles)
            await asyncio.sleep(6)
            assert total(metrics.reconciles) - before <= 1  # pods are asked every 15 s

    play(live, act)


def test_the_command_serves_probes_and_metrics_and_ends_at_a_signal(live: ApiServer, tmp_path: Path) -> None:
    live.kubectl("create", "namespace", "command")
    health, metrics = 18180, 18190
    command = [sys.executable, "-m", "carousel_operator", "run", "--namespace", "command"]
    command += ["--kubeconfig", str(live.kubeconfig), "--operator-namespace", "command"]
    command += ["--health", f"127.0.0.1:{health}", "--metrics-port", str(metrics)]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(command, stderr=log, env={**os.environ, "KUBECONFIG": "/nowhere"})
    try:
        _wait_for(f"http://127.0.0.1:{health}/healthz")
        text = _wait_for(f"http://127.0.0.1:{metrics}/metrics")
        for name in names.METRICS:
            assert name.removesuffix("_total") in text
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0, (tmp_path / "log").read_text()
    finally:
        running.kill()
        running.wait()


def _wait_for(url: str) -> str:
    deadline = time.monotonic() + 30
    while True:
        try:
            return httpx.get(url, trust_env=False).raise_for_status().text
        except httpx.HTTPError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_the_operator_that_was_there_first_notices_a_second_one(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        first = Presence(drive.api, drive.metrics, drive.namespace, "one", look=0.1)
        second = Presence(drive.api, Metrics(), drive.namespace, "two", look=0.1)
        watching = [asyncio.create_task(first.watch())]
        await asyncio.sleep(0.5)
        assert drive.metrics.others._value.get() == 0
        watching.append(asyncio.create_task(second.watch()))

        async def noticed() -> bool:
            return bool(drive.metrics.others._value.get() == 1)

        await eventually(noticed, 10)
        for task in watching:
            task.cancel()

    play(live, act)


def test_another_schema_is_told_at_the_start(live: ApiServer) -> None:
    async def look() -> list[str]:
        api = await Api.connect(str(live.kubeconfig))
        try:
            right = await check_schema(api)
            path = kinds.CRD.path(None, f"{names.PLURAL}.{names.GROUP}")
            body = {"metadata": {"annotations": {names.ANNOTATION_SCHEMA: "older"}}}
            merge = "application/merge-patch+json"
            await api._call("PATCH", path, body=body, content_type=merge)
            wrong = await check_schema(api)
            body = {"metadata": {"annotations": {names.ANNOTATION_SCHEMA: crd.schema_digest()}}}
            await api._call("PATCH", path, body=body, content_type=merge)
            return [right, wrong]
        finally:
            await api.close()

    right, wrong = asyncio.run(look())
    assert right == ""
    assert "has schema older" in wrong
    assert "upgrade the chart carousel-crds" in wrong
