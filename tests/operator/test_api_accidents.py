"""What goes wrong under a running server, on a real API server: what is told, and what is done about it."""

import pytest
from carousel_operator import kinds, revision
from carousel_operator.resource import InferenceServer

from tests.operator.apiserver import ApiServer
from tests.operator.driving import Drive, play

pytestmark = pytest.mark.api


def test_a_container_that_dies_costs_its_boot_and_the_cause_is_told(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        dead = drive.fake.by_name["chat-0"]
        dead.sessions = 4
        drive.clock.ahead += 60
        await drive.step()
        await drive.fake.restart_container("chat-0", 137, "OOMKilled")

        async def told() -> bool:
            return await drive.ledger() == [(dead.boot_id, "out-of-memory")]

        await drive.until(told)
        for _ in range(3):
            await drive.step()
        assert (await drive.status())["sessions"]["lost"] == [{"cause": "out-of-memory", "boots": 1, "sessions": 4}]
        assert [lost.cause for lost in drive.fake.by_name["chat-1"].peers.lost] == ["out-of-memory"]
        assert [lost.cause for lost in drive.fake.by_name["chat-0"].peers.lost] == ["out-of-memory"]
        assert drive.metrics.lost_boots.labels("out-of-memory")._value.get() == 1
        assert drive.metrics.lost_sessions.labels("out-of-memory")._value.get() == 4

    play(live, act)


def test_a_pod_on_a_lost_node_is_told_and_not_forced(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply()
        await drive.until(drive.ready)
        before = await drive.uids()
        await drive.fake.by_name["chat-0"].stop()
        await drive.fake.set_node("Unknown")
        await drive.step()
        assert (await drive.condition("Degraded")) == ("True", "NodeLost")
        assert (await drive.status())["pods"][0]["state"] == "Lost"
        assert await drive.uids() == before
        assert await drive.ledger() == []

    play(live, act)


def test_a_rotated_secret_replaces_pods_only_when_a_referenced_key_changed(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        async def secret(**data: str) -> None:
            meta = {"name": "extra", "namespace": drive.namespace}
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data}
            await drive.api.apply(kinds.SECRET, body)

        ref = {"name": "extra", "key": "used"}
        env = {"env": [{"name": "X", "valueFrom": {"secretKeyRef": ref}}]}
        await drive.apply(pod=env)
        await drive.step()
        await drive.step()
        assert await drive.condition("Degraded") == ("True", "SecretMissing")
        await secret(used="a", other="b")
        await drive.until(drive.ready)
        before = await drive.uids()
        await secret(used="a", other="changed")
        for _ in range(3):
            await drive.step()
        assert await drive.uids() == before
        assert await drive.condition("Ready") == ("True", "Serving")
        await secret(used="changed", other="changed")
        await drive.until(lambda: drive.replaced(before))

    play(live, act)


def test_a_failing_revision_stops_and_its_fix_goes_through(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        before = await drive.uids()
        await drive.apply(replicas=2, engine={"drafts": 0})
        raw = await drive.api.get(kinds.SERVER, drive.namespace, "chat")
        assert raw is not None
        drive.fake.hold_revisions[revision.of(InferenceServer.parse(raw).spec)] = "ImagePullBackOff"

        async def stopped() -> bool:
            return await drive.condition("Progressing") == ("False", "NewRevisionFailing")

        await drive.until(stopped)
        for _ in range(5):
            await drive.step()
        now = await drive.uids()
        assert len(set(now.values()) & set(before.values())) == 1
        assert "RolloutStopped" in await drive.events()
        await drive.apply(replicas=2, engine={"drafts": 1})

        async def through() -> bool:
            return await drive.ready() and not set((await drive.uids()).values()) & set(before.values())

        await drive.until(through)

    play(live, act)


def test_one_gpu_is_freed_before_the_new_pod_asks_for_it(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        drive.fake.free_gpus = 1
        await drive.apply()
        await drive.until(drive.ready)
        before = await drive.uids()
        await drive.apply(restart={"id": "a"})
        most = 0

        async def replaced() -> bool:
            nonlocal most
            most = max(most, len(await drive.pods()))
            return (await drive.uids()) != before and await drive.ready()

        await drive.until(replaced)
        assert most == 1
        drive.fake.free_gpus = 1
        await drive.apply(replicas=2, restart={"id": "a"})

        async def waits() -> bool:
            return await drive.condition("Ready") == ("False", "WaitingForGPU")

        await drive.until(waits)

    play(live, act)
