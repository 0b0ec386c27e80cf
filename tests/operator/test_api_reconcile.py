"""What the operator does and leaves alone, on a real API server with Kubernetes' own controllers."""

import json
from typing import Any

import pytest
from carousel_operator import kinds, names

from tests.operator.apiserver import ApiServer
from tests.operator.driving import Drive, play

pytestmark = pytest.mark.api


def test_at_rest_nothing_is_written_and_a_restarted_operator_changes_nothing(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=2, networkPolicy={"enabled": True}, monitoring={"podMonitor": True})
        await drive.until(drive.ready)
        for _ in range(5):
            await drive.step()
        drive.writes.clear()
        for _ in range(10):
            drive.clock.ahead += 15
            await drive.step()
        assert drive.writes == []
        versions = await _versions(drive)
        drive.start()
        for _ in range(3):
            await drive.step()
        assert await _versions(drive) == versions
        drive.writes.clear()
        drive.clock.ahead += 600
        await drive.step()
        assert drive.writes == []

    play(live, act)


async def _versions(drive: Drive) -> dict[tuple[str, str], str]:
    found = {}
    for kind in (kinds.SERVER, *(k for k in kinds.CHILDREN if k is not kinds.POD_MONITOR), kinds.POD):
        for item in await drive.api.list_all(kind, drive.namespace):
            found[kind.kind, item["metadata"]["name"]] = item["metadata"]["resourceVersion"]
    return found


def test_counts_alone_are_written_at_most_every_thirty_seconds(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply()
        await drive.until(drive.ready)
        server = drive.fake.by_name["chat-0"]
        await drive.step()
        drive.writes.clear()
        for n in range(10):
            server.sessions = n + 1
            drive.clock.ahead += 3
            await drive.step()
        assert drive.writes.count("apply InferenceServer") <= 2
        drive.clock.ahead += 30
        await drive.step()
        assert (await drive.status())["sessions"]["active"] == 10

    play(live, act)


def test_children_edited_or_deleted_by_hand_are_put_right_and_it_is_told_once(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply()
        await drive.until(drive.ready)
        path = kinds.SERVICE.path(drive.namespace, "chat")
        body = {"spec": {"ports": [{"name": "http", "port": 9, "targetPort": "http", "protocol": "TCP"}]}}
        merge = "application/merge-patch+json"
        await drive.api._call("PATCH", path, query=[("fieldManager", "hand")], body=body, content_type=merge)
        budget = await drive.api.get(kinds.BUDGET, drive.namespace, "chat")
        assert budget is not None
        await drive.api.delete(kinds.BUDGET, drive.namespace, "chat", budget["metadata"]["uid"])
        await drive.step()
        service = await drive.api.get(kinds.SERVICE, drive.namespace, "chat")
        assert service is not None
        assert [port["port"] for port in service["spec"]["ports"]] == [8000]
        assert await drive.api.get(kinds.BUDGET, drive.namespace, "chat") is not None
        for _ in range(3):
            await drive.step()
        assert (await drive.events()).count("ChildRepaired") == 1

    play(live, act)


def test_a_field_that_somebody_else_adds_to_a_child_is_left_to_them(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply()
        await drive.until(drive.ready)
        body = {"metadata": {"annotations": {"other.example/note": "mine"}}}
        path, merge = kinds.STATEFUL_SET.path(drive.namespace, "chat"), "application/merge-patch+json"
        await drive.api._call("PATCH", path, query=[("fieldManager", "other")], body=body, content_type=merge)
        await drive.step()
        drive.writes.clear()
        for _ in range(3):
            await drive.step()
        assert drive.writes == []
        found = await drive.api.get(kinds.STATEFUL_SET, drive.namespace, "chat")
        assert found is not None
        assert found["metadata"]["annotations"]["other.example/note"] == "mine"

    play(live, act)


def test_an_object_of_a_child_s_name_that_is_not_ours_is_refused_by_name(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat"}, "spec": {"ports": [{"port": 1}]}}
        await drive.api.create(kinds.SERVICE, drive.namespace, body)
        await drive.apply()
        await drive.step()
        assert await drive.condition("Ready") == ("False", "InvalidSpec")
        assert "Service chat exists and belongs to someone else" in json.dumps(await drive.status())
        left = await drive.api.get(kinds.SERVICE, drive.namespace, "chat")
        assert left is not None
        assert left["spec"]["ports"][0]["port"] == 1

    play(live, act)


def test_children_that_the_spec_no_longer_asks_for_go(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(networkPolicy={"enabled": True})
        await drive.until(drive.ready)
        assert await drive.api.get(kinds.NETWORK_POLICY, drive.namespace, "chat") is not None
        await drive.apply()
        await drive.until(drive.ready)
        assert await drive.api.get(kinds.NETWORK_POLICY, drive.namespace, "chat") is None

    play(live, act)


def test_a_missing_optional_kind_is_told_once_and_everything_else_is_applied(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(monitoring={"podMonitor": True})
        await drive.until(drive.ready)
        for _ in range(3):
            await drive.step()
        assert (await drive.events()).count("PodMonitorMissing") == 1

    play(live, act)


def test_the_operator_adds_no_finalizer_and_no_annotation_to_the_user_s_object(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply()
        await drive.until(drive.ready)
        found = await drive.api.get(kinds.SERVER, drive.namespace, "chat")
        assert found is not None
        assert "finalizers" not in found["metadata"]
        assert not found["metadata"].get("annotations")
        managers = {m["manager"]: m.get("subresource", "") for m in found["metadata"]["managedFields"]}
        assert managers == {"user": "", names.FIELD_MANAGER: "status"}

    play(live, act)


def test_deleting_the_object_with_the_operator_stopped_leaves_nothing(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        await drive.api._call("DELETE", kinds.SERVER.path(drive.namespace, "chat"))

        async def gone() -> bool:
            left: list[Any] = []
            for kind in (kinds.POD, kinds.STATEFUL_SET, kinds.SERVICE, kinds.SECRET, kinds.BUDGET):
                left += await drive.api.list_all(kind, drive.namespace, names.LABEL_SERVER)
            return not left

        drive.reconciler = _stopped  # type: ignore[assignment]
        await drive.until(gone, 60)

    play(live, act)


async def _stopped(key: Any) -> None:
    return None


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_deleting_the_object_in_any_phase_ends_its_reconciles_quietly(live: ApiServer, steps: int) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply()
        for _ in range(steps):
            await drive.step()
        await drive.api._call("DELETE", kinds.SERVER.path(drive.namespace, "chat"))
        drive.writes.clear()
        assert await drive.step() is None
        assert drive.writes == []

    play(live, act)


def test_a_preview_shows_what_a_change_would_do_and_does_nothing(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        before = await drive.uids()
        for server in drive.fake.servers.values():
            server.sessions = 3
        preview = {names.ANNOTATION_PREVIEW: "true"}
        await drive.apply(replicas=2, engine={"drafts": 0}, limits={"queuedRequests": 5}, annotations=preview)
        for _ in range(4):
            await drive.step()
        change = (await drive.status())["change"]
        assert change["class"] == "Restart"
        assert change["fields"] == ["limits.queuedRequests", "engine.drafts"]
        assert (change["preview"], change["sessions"]) == (True, 6)
        assert "would: drains and replaces 2 pods with 6 sessions" in change["message"]
        assert await drive.uids() == before
        assert all(server.drain is None for server in drive.fake.servers.values())
        drive.writes.clear()
        await drive.step()
        assert drive.writes == []
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        await drive.step()
        assert "change" not in await drive.status()
        assert await drive.uids() == before

    play(live, act)


def test_hot_limits_reach_every_pod_without_a_restart_and_new_pods_start_with_them(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        before = await drive.uids()
        await drive.apply(replicas=2, limits={"queuedRequests": 5})

        async def applied() -> bool:
            limits = (await drive.status()).get("limits", {})
            return limits.get("appliedReplicas") == 2 and limits["generation"] > 1

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
            return (await drive.status())["limits"]["appliedReplicas"] == 2

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

        async def replaced() -> bool:
            return (await drive.uids()) != before and await drive.ready()

        await drive.until(replaced)
        assert "POST /admin/drain/close 200" in server.calls
        assert (await drive.events()).count("ResizeRefused") == 1
        assert await drive.ledger() == [(server.boot_id, "rollout")]

    play(live, act)


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

        async def replaced() -> bool:
            return (await drive.uids()) != before and await drive.ready()

        await drive.until(replaced)

    play(live, act)


def test_a_failing_revision_stops_and_its_fix_goes_through(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        from carousel_operator import revision
        from carousel_operator.resource import InferenceServer

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
