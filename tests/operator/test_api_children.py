"""Children of an InferenceServer on a real API server: repaired, left alone, refused, removed."""

import json

import pytest
from carousel_operator import kinds

from tests.operator.apiserver import ApiServer
from tests.operator.driving import Drive, play

pytestmark = pytest.mark.api


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


async def _templates(drive: Drive) -> set[str]:
    found = await drive.api.list_all(kinds.CLAIM_TEMPLATE, drive.namespace)
    return {template["metadata"]["name"] for template in found}


def test_a_changed_device_claim_leaves_one_template_and_a_plain_gpu_none(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        claim = {"deviceClassName": "gpu.example.com", "selectors": ["device.driver == 'gpu.example.com'"]}
        await drive.apply(gpu={"claim": claim})
        await drive.until(drive.ready)
        first = await _templates(drive)
        await drive.apply(gpu={"claim": {"deviceClassName": "gpu.example.com"}})
        await drive.until(drive.ready)
        second = await _templates(drive)
        assert len(first) == len(second) == 1
        assert first != second
        pod = (await drive.pods())["chat-0"]
        assert {claim["resourceClaimTemplateName"] for claim in pod["spec"]["resourceClaims"]} == second
        await drive.apply()
        await drive.until(drive.ready)
        assert await _templates(drive) == set()

    play(live, act)


def test_a_device_selector_that_does_not_compile_is_told_and_no_pod_is_touched(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply()
        await drive.until(drive.ready)
        before = await drive.uids()
        await drive.apply(gpu={"claim": {"deviceClassName": "gpu.example.com", "selectors": ["device.drivr =="]}})
        for _ in range(3):
            await drive.step()
        assert await drive.condition("Ready") == ("False", "InvalidSpec")
        message = (await drive.status())["conditions"][0]["message"]
        assert message.startswith("the API server refuses ResourceClaimTemplate")
        assert "device.drivr ==" in message
        assert await drive.uids() == before
        assert drive.fake.by_name["chat-0"].drain is None
        await drive.apply(gpu={"claim": {"deviceClassName": "gpu.example.com", "selectors": ["true"]}})
        await drive.until(lambda: drive.replaced(before))

    play(live, act)
