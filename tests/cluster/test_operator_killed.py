"""The operator is killed at each step of a drain: the drain keeps its deadline, its order, and its end."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.killer import DRAIN, Killer, Sight
from tests.cluster.kube import Namespace
from tests.cluster.scenario import QUICK, Traffic, scripted_server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STEPS: dict[str, Callable[[Sight], bool]] = {
    "mark": lambda s: bool(s.marks),
    "quiesce": lambda s: bool(s.told),
    "wait": lambda s: bool(s.told) and s.told["remainingSeconds"] < 5,
    "close": lambda s: bool(s.told.get("closed")),
    "ledger": lambda s: s.lost,
    "delete": lambda s: s.deleting,
    "gone": lambda s: s.gone,
    "loading": lambda s: s.new_pod("PodReadyToStartContainers"),
    "ready": lambda s: s.new_pod("Ready"),
}
LEAVING: dict[str, Callable[[Sight], bool]] = {
    "close": STEPS["close"],
    "replicas": lambda s: s.replicas == 0,
    "gone": STEPS["gone"],
}


def lost_boots(namespace: Namespace, server: str, cause: str) -> int:
    """How many boots the status has lost to this cause."""
    lost: list[dict[str, Any]] = namespace.get("infsrv", server)["status"]["sessions"].get("lost", [])
    return next((entry["boots"] for entry in lost if entry["cause"] == cause), 0)


@pytest.fixture(scope="module")
def server(namespace: Namespace) -> str:
    """The InferenceServer whose pod drains in every row."""
    namespace.apply(scripted_server("killed", drain=QUICK | {"sessionTimeout": "8s"}))
    namespace.ready("killed")
    return "killed"


ROWS = [pytest.param(step, marks=() if step == "wait" else pytest.mark.full) for step in STEPS]


@pytest.mark.parametrize("step", ROWS)
def test_a_restart_ends_as_it_began_when_the_operator_is_killed_at(
    namespace: Namespace, server: str, step: str
) -> None:
    before = lost_boots(namespace, server, "restart")
    with Traffic(namespace, server, causes=["restart"], refused=True, stream_pieces=12) as traffic:
        traffic.settled()
        with Killer(namespace, server, STEPS[step]) as killer:
            namespace.patch("infsrv", server, {"spec": {"restart": {"id": step}}})
            traffic.note(f"the operator was killed with the pod {killer.killed()}")
            namespace.other_boot(server, killer.sight.boot)
            namespace.ready(server)
        namespace.wait("a session learns of it", lambda: any(e["what"] == "lost" for e in traffic.events), 60)
    traffic.check()
    assert set(traffic.result["causes"]) == {"restart"}, traffic.result
    assert len(killer.sight.marks) == 1, f"the deadline moved: {killer.sight.marks}"
    assert len(killer.sight.pods) == 1, f"replaced more than once: {killer.sight.pods}"
    assert lost_boots(namespace, server, "restart") == before + 1, "the boot is counted once"


@pytest.mark.full
@pytest.mark.parametrize("step", LEAVING)
def test_a_suspension_goes_through_when_the_operator_is_killed_at(namespace: Namespace, server: str, step: str) -> None:
    before = lost_boots(namespace, server, "suspend")
    with Traffic(namespace, server, causes=["suspend"], refused=True, stream_pieces=12) as traffic:
        traffic.settled()
        with Killer(namespace, server, LEAVING[step]) as killer:
            namespace.patch("infsrv", server, {"spec": {"suspend": True}})
            traffic.note(f"the operator was killed with the pod {killer.killed()}")
            namespace.wait_condition(server, "Ready", status="False", reason="Suspended", seconds=120)
        namespace.patch("infsrv", server, {"spec": {"suspend": False}})
        namespace.other_boot(server, killer.sight.boot)
        namespace.wait("a session learns of it", lambda: any(e["what"] == "lost" for e in traffic.events), 60)
    traffic.check()
    assert set(traffic.result["causes"]) == {"suspend"}, traffic.result
    assert len(killer.sight.marks) == 1, f"the deadline moved: {killer.sight.marks}"
    namespace.ready(server)
    assert lost_boots(namespace, server, "suspend") == before + 1, "the boot is counted once"


@pytest.mark.full
def test_an_undone_drain_is_forgotten_when_the_operator_is_killed_before_the_mark_is_gone(
    namespace: Namespace, server: str
) -> None:
    namespace.patch("infsrv", server, {"spec": {"drain": {"sessionTimeout": "5m", "idleGrace": "1m"}}})
    boot = namespace.serving_boot(server)

    def undone(sight: Sight) -> bool:
        return sight.was_told and not sight.told

    with Traffic(namespace, server, stream_pieces=12) as traffic:
        traffic.settled()
        with Killer(namespace, server, undone) as killer:
            namespace.patch("infsrv", server, {"spec": {"engine": {"drafts": 1}}})
            namespace.wait("the server drains", lambda: killer.sight.told)
            namespace.patch("infsrv", server, {"spec": {"engine": {"drafts": 2}}})
            traffic.note(f"the operator was killed with the pod {killer.killed()}")
        namespace.wait("no mark", lambda: DRAIN not in namespace.get("pod", f"{server}-0")["metadata"]["annotations"])
        namespace.ready(server)
    traffic.check(lost=0)
    assert namespace.boot_of(server) == boot
