"""Limits and sizes of running pods on a real API server."""

import pytest

from tests.operator.apiserver import ApiServer
from tests.operator.driving import Drive, play

pytestmark = pytest.mark.api


def test_hot_limits_reach_every_pod_without_a_restart_and_new_pods_start_with_them(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        before = await drive.uids()
        await drive.apply(replicas=2, limits={"queuedRequests": 5})

        async def applied() -> bool:
            limits = (await drive.status()).get("limits", {})
            return bool(limits.get("appliedReplicas") == 2 and limits["generation"] > 1)

        await drive.until(applied)
        assert {server.limits.queued_requests for server in drive.fake.servers.values()} == {5}
        assert await drive.uids() == before
        await drive.step()
        assert "LimitsApplied" in await drive.events()
        generation = (await drive.status())["limits"]["generation"]
        await drive.apply(replicas=3, limits={"queuedRequests": 5})
        await drive.until(drive.ready)
        assert drive.fake.by_name["chat-2"].limits_generation == generation
        assert "PUT /admin/limits 200" not in drive.fake.by_name["chat-2"].calls

    play(live, act)


def test_an_unreachable_pod_is_counted_and_tried_again(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        silent = drive.fake.by_name["chat-1"]
        await silent.stop()
        await drive.apply(replicas=2, limits={"queuedRequests": 5})
        for _ in range(3):
            await drive.step()
        assert (await drive.status())["limits"]["appliedReplicas"] == 1
        drive.clock.ahead += 20
        await drive.step()
        assert await drive.condition("Degraded") == ("True", "AdminUnreachable")
        for _ in range(3):
            drive.clock.ahead += 150
            await drive.step()
        assert (await drive.events()).count("LimitsDeferred") == 1
        await silent.start()

        async def applied() -> bool:
            return bool((await drive.status())["limits"]["appliedReplicas"] == 2)

        await drive.until(applied)

    play(live, act)


def test_more_memory_is_there_before_the_limits_that_need_it(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(resources={}, limits={"prefixCache": {"bytes": "64Mi"}})
        await drive.until(drive.ready)
        before = await drive.uids()
        await drive.apply(resources={}, limits={"prefixCache": {"bytes": "128Mi"}})

        async def applied() -> bool:
            return drive.fake.by_name["chat-0"].limits.prefix_cache.bytes == 128 * 2**20

        await drive.until(applied)
        assert drive.writes.index("patch_pod_resize") < drive.writes.index("put_limits")
        assert await drive.uids() == before

    play(live, act)


def test_a_resize_that_no_node_can_hold_becomes_a_drained_restart(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        drive.fake.node_memory = "4Gi"
        await drive.fake.set_node("True")
        await drive.apply()
        await drive.until(drive.ready)
        before = await drive.uids()
        server = drive.fake.by_name["chat-0"]
        await drive.apply(resources={"hostMemory": "5Gi"})
        await drive.until(lambda: drive.replaced(before))
        assert "POST /admin/drain/close 200" in server.calls
        assert (await drive.events()).count("ResizeRefused") == 1
        assert await drive.ledger() == [(server.boot_id, "rollout")]

    play(live, act)


def test_limits_that_do_not_fit_are_told_before_any_pod_changes(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply()
        await drive.until(drive.ready)
        before = await drive.uids()
        await drive.apply(limits={"prefixCache": {"bytes": "64Gi"}}, restart={"id": "a"})
        await drive.step()
        await drive.step()
        assert await drive.condition("Ready") == ("False", "LimitsDoNotFit")
        assert await drive.uids() == before
        assert drive.fake.by_name["chat-0"].drain is None

    play(live, act)
