"""The operator at rest, before a change and at the end of an object, with Kubernetes' own controllers."""

from typing import Any

import pytest
from carousel_operator import kinds, names, resync, timing
from carousel_operator.api import Api
from carousel_operator.reconcile import SOON
from carousel_operator.view import Json

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


class CountingApi(Api):
    """Remembers the path of every request."""

    def __init__(self, inner: Api) -> None:
        self._client, self._count = inner._client, lambda kind, verb: None
        self.paths: list[str] = []

    async def _call(self, verb: str, path: str, *args: Any, **kwargs: Any) -> Json:
        self.paths.append(path)
        return await super()._call(verb, path, *args, **kwargs)


def counted(drive: Drive) -> CountingApi:
    """Every request of the reconciler goes through it from now on."""
    api = CountingApi(drive.api)
    drive.reconciler.api = drive.reconciler.observer._api = drive.reconciler.applier.api = api
    return api


def test_without_an_event_only_the_pods_are_asked(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply()
        await drive.until(drive.ready)
        for _ in range(3):
            await drive.step()
        key, server = (drive.namespace, "chat"), drive.fake.by_name["chat-0"]
        api = counted(drive)
        assert await drive.reconciler(key, changed=False) == 15
        assert api.paths == []
        server.sessions = 3
        drive.clock.ahead += 60
        await drive.reconciler(key, changed=False)
        assert (await drive.status())["sessions"]["active"] == 3
        budget = await drive.api.get(kinds.BUDGET, drive.namespace, "chat")
        assert budget is not None
        await drive.api.delete(kinds.BUDGET, drive.namespace, "chat", budget["metadata"]["uid"])
        # The event of the deletion, a poll that comes before the event of the repair, and one after it.
        for changed, everything_is_read in ((True, True), (False, True), (False, False)):
            api.paths.clear()
            await drive.reconciler(key, changed=changed)
            assert (len(api.paths) > 8) == everything_is_read

    play(live, act)


def test_a_pod_that_answers_otherwise_is_read_anew_without_an_event(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply()
        await drive.until(drive.ready)
        for _ in range(3):
            await drive.step()
        key, server = (drive.namespace, "chat"), drive.fake.by_name["chat-0"]
        server.sessions = 3
        drive.clock.ahead += 10
        assert await drive.reconciler(key, changed=False) == 15
        asked = drive.clock()
        boot, server.boot_id, server.sessions = server.boot_id, "other", 0  # its container ended, and no event came
        drive.clock.ahead += 15
        api = counted(drive)
        assert await drive.reconciler(key, changed=False) == SOON
        assert api.paths == []
        await drive.reconciler(key, changed=False)
        assert len(api.paths) > 8
        assert await drive.ledger() == [(boot, "unknown")]
        held = f"chat-0 boot {boot}: 3 sessions as of {timing.clock(asked)}, unknown"
        events = await drive.api.list_all(kinds.EVENT, drive.namespace)
        assert held in [event["message"] for event in events]

    play(live, act)


def test_whatever_a_lost_event_would_have_told_differs_from_what_was_left(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(networkPolicy={"enabled": True})
        await drive.until(drive.ready)
        for _ in range(3):
            await drive.step()
        key = (drive.namespace, "chat")
        left = drive.reconciler.memories[key].versions
        assert await resync.served(drive.api, drive.namespace) == {key: left}
        assert len(left) >= 8
        for kind in (kinds.NETWORK_POLICY, kinds.SERVICE, kinds.STATEFUL_SET, kinds.SERVER):
            note = {"metadata": {"labels": {"example.com/note": "x"}}}
            await drive.api.patch(kind, drive.namespace, "chat", note)
            found = (await resync.served(drive.api, drive.namespace))[key]
            assert {entry[:2] for entry in found - left} == {(kind.kind, "chat")}
            await drive.step()
            await drive.step()
            left = drive.reconciler.memories[key].versions
            assert (await resync.served(drive.api, None))[key] == left

    play(live, act)


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
