"""Drains on a real API server with Kubernetes' own controllers; scheduler, kubelet and servers are stand-ins."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.operator.apiserver import ApiServer
from tests.operator.driving import Drive, Killed, play
from tests.operator.fake_server import FakeServer

pytestmark = pytest.mark.api


async def a_busy_pod_is_told_to_go(drive: Drive, go: Callable[[], Coroutine[Any, Any, None]]) -> dict[str, str]:
    """One pod with 3 sessions and an open stream, and `go` has made it drain; its uid by name."""
    await drive.apply()
    await drive.until(drive.ready)
    server = drive.fake.by_name["chat-0"]
    server.sessions, server.running, server.idle_seconds = 3, 1, 0.0
    await go()
    await drive.until(lambda: drains(server))
    return await drive.uids()


async def drains(server: FakeServer) -> bool:
    """Whether its server was told to drain."""
    return server.drain is not None


def test_a_restart_id_drains_and_replaces_the_pods_one_at_a_time(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        before = await drive.uids()
        boots = {name: server.boot_id for name, server in drive.fake.by_name.items()}
        for server in drive.fake.servers.values():
            server.sessions = 2
        await drive.apply(replicas=2, restart={"id": "a"})
        fewest = 2

        async def replaced() -> bool:
            nonlocal fewest
            pods = await drive.pods()
            up = [p for p in pods.values() if p.get("status", {}).get("phase") == "Running"]
            fewest = min(fewest, len([p for p in up if "deletionTimestamp" not in p["metadata"]]))
            now = await drive.uids()
            return set(now) == set(before) and not set(now.values()) & set(before.values()) and await drive.ready()

        await drive.until(replaced)
        assert fewest == 1
        assert sorted(await drive.ledger()) == sorted((boot, "restart") for boot in boots.values())
        status = await drive.status()
        assert status["sessions"]["lost"] == [{"cause": "restart", "boots": 2, "sessions": 4}]
        assert status["revision"]["current"] == status["revision"]["desired"]
        assert "change" not in status
        events = await drive.events()
        assert events.count("DrainStarted") == events.count("DrainFinished") == events.count("SessionsLost") == 2
        assert events.count("RolloutStarted") == events.count("RolloutFinished") == 1

    play(live, act)


def test_a_drain_waits_for_a_stream_and_tells_until_when(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        before = await a_busy_pod_is_told_to_go(drive, lambda: drive.apply(restart={"id": "a"}))
        server = drive.fake.by_name["chat-0"]
        for _ in range(5):
            await drive.step()
        assert await drive.condition("Ready") == ("False", "Draining")
        assert await drive.uids() == before
        status = await drive.status()
        mark = json.loads(await drive.mark("chat-0") or "")
        assert status["pods"][0]["drain"]["reason"] == "restart"
        assert status["drainingReplicas"] == 1
        assert "3 sessions, 1 request, until" in status["conditions"][0]["message"]
        assert mark["deadline"] - mark["startedAt"] == 600
        server.running, server.idle_seconds = 0, 100.0
        await drive.until(lambda: drive.replaced(before))
        closing = [call for call in server.calls if "close" in call]
        assert closing == ["POST /admin/drain/close 200"]

    play(live, act)


def test_at_the_deadline_the_stream_is_cut_and_told(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        before = await a_busy_pod_is_told_to_go(drive, lambda: drive.apply(restart={"id": "a"}))
        server = drive.fake.by_name["chat-0"]
        drive.clock.ahead = 601
        await drive.until(lambda: drive.replaced(before))
        assert await drive.told("DrainForced")
        assert (await drive.ledger()) == [(server.boot_id, "restart")]

    play(live, act)


def test_a_drain_that_is_no_longer_wanted_is_undone(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        before = await a_busy_pod_is_told_to_go(drive, lambda: drive.apply(restart={"id": "a"}))
        server = drive.fake.by_name["chat-0"]
        await drive.apply()

        async def undone() -> bool:
            return server.drain is None and await drive.mark("chat-0") is None and await drive.ready()

        await drive.until(undone)
        assert await drive.uids() == before
        assert await drive.ledger() == []
        assert await drive.told("DrainUndone")

    play(live, act)


def test_scaling_down_drains_the_highest_ordinal_and_up_again_brings_it_back(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=3)
        await drive.until(drive.ready)
        victim = drive.fake.by_name["chat-2"]
        victim.sessions, victim.running = 1, 1
        await drive.apply(replicas=1)

        await drive.until(lambda: drains(victim))
        for _ in range(3):
            await drive.step()
        assert len(await drive.pods()) == 3
        assert victim.drain is not None
        assert victim.drain.reason == "scale-down"
        victim.running, victim.idle_seconds = 0, 100.0

        async def one() -> bool:
            return set(await drive.pods()) == {"chat-0"} and await drive.ready()

        await drive.until(one)
        assert [cause for _, cause in await drive.ledger()] == ["scale-down", "scale-down"]
        # What remains can tell the clients of the pods that are gone.
        assert {lost.cause for lost in drive.fake.by_name["chat-0"].peers.lost} == {"scale-down"}
        await drive.apply(replicas=3)
        await drive.until(drive.ready)
        assert len(await drive.pods()) == 3

    play(live, act)


def test_suspending_drains_all_pods_and_resuming_brings_them_back_with_the_ledger(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        first, second = (drive.fake.by_name[f"chat-{n}"] for n in range(2))
        first.sessions = second.sessions = 1
        second.running = 1
        await drive.apply(replicas=2, suspend=True)

        async def both_drain() -> bool:
            return first.drain is not None and second.drain is not None and first.drain.closed

        await drive.until(both_drain)
        for _ in range(3):
            await drive.step()
        assert len(await drive.pods()) == 2
        second.running, second.idle_seconds = 0, 100.0

        async def suspended() -> bool:
            return not await drive.pods() and (await drive.condition("Ready")) == ("False", "Suspended")

        await drive.until(suspended)
        await drive.apply(replicas=2)
        await drive.until(drive.ready)
        assert {lost.cause for lost in drive.fake.by_name["chat-0"].peers.lost} == {"suspend"}

    play(live, act)


def test_a_cordoned_node_s_pod_leaves_when_it_is_quiet_and_not_before(live: ApiServer) -> None:
    async def act(drive: Drive) -> None:
        before = await a_busy_pod_is_told_to_go(drive, lambda: drive.fake.cordon(True))
        server = drive.fake.by_name["chat-0"]
        drive.clock.ahead = 7200  # no deadline applies
        for _ in range(3):
            await drive.step()
        assert await drive.uids() == before
        server.running, server.idle_seconds = 0, 100.0

        async def gone() -> bool:
            return (await drive.uids()) != before

        await drive.until(gone)
        assert (await drive.ledger()) == [(server.boot_id, "cordon")]

    play(live, act)


# The second ConfigMap is the one with the ledger: the first only repeats what is there after a start.
STEPS = (
    *(("apply InferenceServer", 1), ("apply StatefulSet", 1), ("patch Pod", 1), ("quiesce", 1), ("close_drain", 1)),
    *(("apply ConfigMap", 2), ("put_peers", 1), ("delete Pod", 1), ("create Event", 3), ("apply InferenceServer", 3)),
)


@pytest.mark.parametrize("after", [False, True], ids=["before_the_write", "after_the_write"])
def test_an_operator_killed_at_each_step_of_a_drain_goes_on_with_the_same_deadline(
    live: ApiServer, after: bool
) -> None:
    async def act(drive: Drive) -> None:
        await drive.apply()
        await drive.until(drive.ready)
        drive.kill_after = after
        died: list[tuple[str, int]] = []
        for write, occurrence in STEPS:
            before = await drive.uids()
            known = await drive.ledger()
            server = drive.fake.by_name["chat-0"]
            server.sessions, server.idle_seconds = 2, 100.0
            await drive.apply(restart={"id": f"{write[:5]}-{occurrence}-{len(died)}".replace(" ", "-")})
            marks: list[str] = []

            async def replaced(before: dict[str, str] = before, marks: list[str] = marks) -> bool:
                mark = await drive.mark("chat-0")
                if mark is not None and mark not in marks:
                    marks.append(mark)
                return (await drive.uids()).get("chat-0", before["chat-0"]) != before["chat-0"] and await drive.ready()

            drive.start()
            drive.kill_at = {write: occurrence}
            try:
                await drive.until(replaced)
            except Killed as step:
                died.append((str(step), occurrence))
                drive.kill_at = None
                drive.start()
                await drive.until(replaced)
            drive.kill_at = None
            assert len(marks) <= 1, "the drain began again"
            new = [entry for entry in await drive.ledger() if entry not in known]
            assert new == [(server.boot_id, "restart")], "the boot is told once, with its cause"
            (lost,) = (await drive.status())["sessions"]["lost"]
            assert lost["boots"] == len(await drive.ledger()), f"counted once, killed at {write}"
        assert died == list(STEPS)

    play(live, act, 200)
