"""Changes of the spec under traffic: what restarts, what does not, and who is told."""

from typing import Any

import pytest

from tests.cluster.kube import Namespace, condition
from tests.cluster.scenario import Traffic, scripted_server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

QUICK = {"idleGrace": "2s", "sessionTimeout": "12s", "requestTimeout": "20s"}


def pods(namespace: Namespace, server: str) -> list[dict[str, Any]]:
    return list(namespace.get("infsrv", server).get("status", {}).get("pods", []))


def ready(namespace: Namespace, server: str, seconds: float = 120) -> dict[str, Any]:
    return namespace.wait_condition(server, "Ready", status="True", seconds=seconds)


def other_boot(namespace: Namespace, server: str, boot: str, seconds: float = 150) -> dict[str, Any]:
    def replaced() -> dict[str, Any] | None:
        serving = [
            p for p in pods(namespace, server) if p.get("bootId") not in (None, boot) and p["state"] == "Serving"
        ]
        return serving[0] if serving else None

    return namespace.wait(f"{server} serves with another boot than {boot}", replaced, seconds)


def test_a_rollout_on_one_gpu_never_has_a_pending_twin(namespace: Namespace) -> None:
    node = {"nodeSelector": {"kubernetes.io/hostname": "node-2"}}
    namespace.apply(scripted_server("one-gpu", gpu={}, pod=node, drain=QUICK))
    boot = ready(namespace, "one-gpu")["status"]["pods"][0]["bootId"]
    with Traffic(namespace, "one-gpu", causes=["rollout"], refused=True, stream_pieces=12) as traffic:
        traffic.settled()
        namespace.patch("infsrv", "one-gpu", {"spec": {"engine": {"contextTokens": 2048}}})
        most = 0

        def replaced() -> bool:
            nonlocal most
            names = namespace.kubectl("get", "pods", "-l", "app.kubernetes.io/instance=one-gpu", "-o", "name").split()
            most = max(most, len(names))
            found = pods(namespace, "one-gpu")
            return bool(found) and found[0].get("bootId") not in (None, boot) and found[0]["state"] == "Serving"

        namespace.wait("the new revision serves", replaced, 150)
        assert most == 1, f"{most} pods at once"
        namespace.wait("traffic reaches the new pod", lambda: any(
            e["what"] == "turn" and boot not in e["session"] for e in traffic.events), 60)  # fmt: skip
    traffic.check()
    assert set(traffic.result["causes"]) == {"rollout"}, traffic.result
    status = ready(namespace, "one-gpu")["status"]
    lost = {entry["cause"]: entry["sessions"] for entry in status["sessions"]["lost"]}
    assert lost["rollout"] >= 2, status
    namespace.kubectl("delete", "infsrv", "one-gpu", "--timeout=60s", timeout=70)


def test_a_hot_limit_reaches_a_running_pod_without_a_lost_session(namespace: Namespace) -> None:
    namespace.apply(scripted_server("hot", drain=QUICK))
    boot = ready(namespace, "hot")["status"]["pods"][0]["bootId"]
    with Traffic(namespace, "hot", stream_pieces=12) as traffic:
        traffic.settled()
        namespace.patch("infsrv", "hot", {"spec": {"limits": {"activeRequests": 2, "sessions": {"count": 32}}}})

        def applied() -> bool:
            found = namespace.get("infsrv", "hot")
            status = found["status"]
            current = status["observedGeneration"] == found["metadata"]["generation"]
            return current and status["limits"]["appliedReplicas"] == 1 and status["sessions"]["capacity"] == 32

        namespace.wait("the limits are applied", applied)
    traffic.check(lost=0)
    assert set(traffic.result["counts"]) <= {"turn 200", "create 201", "stream whole", "turn 429"}, traffic.result
    assert pods(namespace, "hot")[0]["bootId"] == boot


def test_cpu_is_resized_in_place(namespace: Namespace) -> None:
    boot = ready(namespace, "hot")["status"]["pods"][0]["bootId"]
    namespace.patch("infsrv", "hot", {"spec": {"resources": {"cpu": "300m"}}})

    def resized() -> bool:
        pod = namespace.get("pod", "hot-0")
        status = next(c for c in pod["status"]["containerStatuses"] if c["name"] == "server")
        return bool(
            status.get("resources", {}).get("requests", {}).get("cpu") == "300m" and status["restartCount"] == 0
        )

    namespace.wait("the pod has 300m of CPU and was not restarted", resized, 90)
    assert pods(namespace, "hot")[0]["bootId"] == boot


def test_a_drain_is_undone_when_the_pod_is_wanted_again(namespace: Namespace) -> None:
    found = ready(namespace, "hot")
    boot = found["status"]["pods"][0]["bootId"]
    namespace.patch("infsrv", "hot", {"spec": {"drain": {"sessionTimeout": "5m", "idleGrace": "1m"}}})
    with Traffic(namespace, "hot", stream_pieces=12) as traffic:
        traffic.settled()
        namespace.patch("infsrv", "hot", {"spec": {"engine": {"drafts": 1}}})
        namespace.wait("a drain", lambda: any(p.get("drain") for p in pods(namespace, "hot")))
        namespace.patch("infsrv", "hot", {"spec": {"engine": {"drafts": 2}}})
        namespace.wait("no drain", lambda: not any(p.get("drain") for p in pods(namespace, "hot")))
        namespace.wait("it takes new sessions again", lambda: pods(namespace, "hot")[0]["state"] == "Serving")
    traffic.check(lost=0)
    assert pods(namespace, "hot")[0]["bootId"] == boot


def test_a_crash_looping_revision_stops_the_rollout_and_its_fix_goes_through(namespace: Namespace) -> None:
    boot = ready(namespace, "hot")["status"]["pods"][0]["bootId"]
    namespace.patch("infsrv", "hot", {"spec": {"drain": QUICK, "engine": {"extraArgs": ["--no-such-flag"]}}})
    bad = namespace.wait_condition("hot", "Progressing", status="False", reason="NewRevisionFailing", seconds=150)
    assert "hot-0" in condition(bad, "Progressing")["message"]
    namespace.patch("infsrv", "hot", {"spec": {"engine": {"extraArgs": ["--engine", "scripted"]}}})
    other_boot(namespace, "hot", boot)
    ready(namespace, "hot")


def test_suspend_drains_to_zero_and_resume_serves_again(namespace: Namespace) -> None:
    boot = ready(namespace, "hot")["status"]["pods"][0]["bootId"]
    with Traffic(namespace, "hot", causes=["suspend"], refused=True, stream_pieces=12) as traffic:
        traffic.settled()
        namespace.patch("infsrv", "hot", {"spec": {"suspend": True}})
        namespace.wait_condition("hot", "Ready", status="False", reason="Suspended", seconds=90)
        namespace.wait("no pod", lambda: "hot-0" not in namespace.kubectl("get", "pods", "-o", "name"), 60)
        namespace.patch("infsrv", "hot", {"spec": {"suspend": False}})
        other_boot(namespace, "hot", boot)
        namespace.wait("a session learns of the suspension", lambda: any(
            e["what"] == "lost" for e in traffic.events), 60)  # fmt: skip
    traffic.check()
    assert set(traffic.result["causes"]) == {"suspend"}, traffic.result
    namespace.kubectl("delete", "infsrv", "hot", "--timeout=60s", timeout=70)


def test_scaling_down_drains_the_highest_ordinal_and_its_peers_tell_of_it(namespace: Namespace) -> None:
    namespace.apply(scripted_server("many", replicas=1, drain=QUICK))
    ready(namespace, "many")
    namespace.kubectl("scale", "infsrv/many", "--replicas=2")
    namespace.wait("two pods", lambda: namespace.get("infsrv", "many")["status"].get("readyReplicas") == 2, 120)
    with Traffic(namespace, "many", causes=["scale-down"], workers=8, streams=4, stream_pieces=12) as traffic:
        traffic.settled(ordinal=1)
        namespace.kubectl("scale", "infsrv/many", "--replicas=1")
        namespace.wait("one pod", lambda: "many-1" not in namespace.kubectl("get", "pods", "-o", "name"), 120)
        namespace.wait("a peer tells of the lost boot", lambda: any(
            e["what"] == "lost" for e in traffic.events), 60)  # fmt: skip
    traffic.check()
    assert set(traffic.result["causes"]) == {"scale-down"}, traffic.result
    lost = [e for e in traffic.events if e["what"] == "lost"]
    assert all(e["session"].startswith("1.") for e in lost), lost
    namespace.kubectl("delete", "infsrv", "many", "--timeout=60s", timeout=70)
