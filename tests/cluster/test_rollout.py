"""Changes of the spec under traffic: what restarts, what does not, and who is told."""

import pytest

from tests.cluster.kube import Namespace, condition
from tests.cluster.scenario import QUICK, Traffic, scripted_server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NODE = {"nodeSelector": {"kubernetes.io/hostname": "node-2"}}


@pytest.fixture(scope="module", autouse=True)
def servers(namespace: Namespace) -> None:
    """The servers of the rows come up together: most of that is waiting."""
    namespace.apply(
        scripted_server("one-gpu", gpu={}, pod=NODE),
        scripted_server("hot"),
        scripted_server("many", drain=QUICK | {"sessionTimeout": "4s"}),
    )


def test_a_rollout_on_one_gpu_never_has_a_pending_twin(namespace: Namespace) -> None:
    boot = namespace.serving_boot("one-gpu")
    with Traffic(namespace, "one-gpu", causes=["rollout"], refused=True, stream_pieces=12) as traffic:
        traffic.settled()
        namespace.patch("infsrv", "one-gpu", {"spec": {"engine": {"contextTokens": 2048}}})
        most = 0

        def replaced() -> bool:
            nonlocal most
            names = namespace.kubectl("get", "pods", "-l", "app.kubernetes.io/instance=one-gpu", "-o", "name").split()
            most = max(most, len(names))
            return namespace.boot_of("one-gpu") not in ("", boot)

        namespace.wait("a pod of the new revision runs", replaced, 150)
        assert most == 1, f"{most} pods at once"
        namespace.wait("traffic reaches the new pod", lambda: any(
            e["what"] == "turn" and boot not in e["session"] for e in traffic.events), 60)  # fmt: skip
    traffic.check()
    assert set(traffic.result["causes"]) == {"rollout"}, traffic.result
    status = namespace.ready("one-gpu")["status"]
    lost = {entry["cause"]: entry["sessions"] for entry in status["sessions"]["lost"]}
    assert lost["rollout"] >= 2, status
    namespace.kubectl("delete", "infsrv", "one-gpu", "--timeout=60s", timeout=70)


def test_a_hot_limit_reaches_a_running_pod_without_a_lost_session(namespace: Namespace) -> None:
    boot = namespace.serving_boot("hot")
    with Traffic(namespace, "hot", stream_pieces=12) as traffic:
        traffic.settled()
        namespace.patch("infsrv", "hot", {"spec": {"limits": {"activeRequests": 2, "sessions": {"count": 32}}}})

        def applied() -> bool:
            found = namespace.get("infsrv", "hot")
            status = found["status"]
            current = status["observedGeneration"] == found["metadata"]["generation"]
            return bool(current and status["limits"]["appliedReplicas"] == 1 and status["sessions"]["capacity"] == 32)

        namespace.wait("the limits are applied", applied)
    traffic.check(lost=0)
    assert set(traffic.result["counts"]) <= {"turn 200", "create 201", "stream whole", "turn 429"}, traffic.result
    assert namespace.boot_of("hot") == boot


def test_cpu_is_resized_in_place(namespace: Namespace) -> None:
    boot = namespace.serving_boot("hot")
    namespace.patch("infsrv", "hot", {"spec": {"resources": {"cpu": "300m"}}})

    def resized() -> bool:
        pod = namespace.get("pod", "hot-0")
        status = next(c for c in pod["status"]["containerStatuses"] if c["name"] == "server")
        return bool(
            status.get("resources", {}).get("requests", {}).get("cpu") == "300m" and status["restartCount"] == 0
        )

    namespace.wait("the pod has 300m of CPU and was not restarted", resized, 90)
    assert namespace.boot_of("hot") == boot


def test_a_drain_is_undone_when_the_pod_is_wanted_again(namespace: Namespace) -> None:
    boot = namespace.serving_boot("hot")
    namespace.patch("infsrv", "hot", {"spec": {"drain": {"sessionTimeout": "5m", "idleGrace": "1m"}}})
    with Traffic(namespace, "hot", stream_pieces=12) as traffic:
        traffic.settled()
        namespace.patch("infsrv", "hot", {"spec": {"engine": {"drafts": 1}}})
        namespace.wait("a drain", lambda: any(p.get("drain") for p in namespace.pods_of("hot")))
        namespace.patch("infsrv", "hot", {"spec": {"engine": {"drafts": 2}}})
        namespace.wait("no drain", lambda: not any(p.get("drain") for p in namespace.pods_of("hot")))
        namespace.wait("it takes new sessions again", lambda: namespace.pods_of("hot")[0]["state"] == "Serving")
    traffic.check(lost=0)
    assert namespace.boot_of("hot") == boot


def test_a_crash_looping_revision_stops_the_rollout_and_its_fix_goes_through(namespace: Namespace) -> None:
    boot = namespace.serving_boot("hot")
    namespace.patch("infsrv", "hot", {"spec": {"drain": QUICK, "engine": {"extraArgs": ["--no-such-flag"]}}})
    bad = namespace.wait_condition("hot", "Progressing", status="False", reason="NewRevisionFailing", seconds=150)
    assert "hot-0" in condition(bad, "Progressing")["message"]
    namespace.patch("infsrv", "hot", {"spec": {"engine": {"extraArgs": ["--engine", "scripted"]}}})
    namespace.other_boot("hot", boot)
    namespace.ready("hot")


def test_suspend_drains_to_zero_and_resume_serves_again(namespace: Namespace) -> None:
    boot = namespace.serving_boot("hot")
    with Traffic(namespace, "hot", causes=["suspend"], refused=True, stream_pieces=12) as traffic:
        traffic.settled()
        namespace.patch("infsrv", "hot", {"spec": {"suspend": True}})
        namespace.wait_condition("hot", "Ready", status="False", reason="Suspended", seconds=90)
        namespace.wait("no pod", lambda: "hot-0" not in namespace.kubectl("get", "pods", "-o", "name"), 60)
        namespace.patch("infsrv", "hot", {"spec": {"suspend": False}})
        namespace.other_boot("hot", boot)
        namespace.wait("a session learns of the suspension", lambda: any(
            e["what"] == "lost" for e in traffic.events), 60)  # fmt: skip
    traffic.check()
    assert set(traffic.result["causes"]) == {"suspend"}, traffic.result
    namespace.kubectl("delete", "infsrv", "hot", "--timeout=60s", timeout=70)


@pytest.mark.full
def test_an_autoscaler_sets_the_replicas_by_the_scale_subresource(namespace: Namespace) -> None:
    """It needs no metrics for what lies outside its bounds, which is all that this cluster can show."""
    namespace.apply(scripted_server("elastic"))
    boot = namespace.serving_boot("elastic")
    target = {"apiVersion": "carousel.dev/v1alpha1", "kind": "InferenceServer", "name": "elastic"}
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "elastic"},
        "spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 2},
    }

    def ready(count: int) -> bool:
        status = namespace.ready("elastic")["status"]
        return (status["replicas"], status["readyReplicas"]) == (count, count)

    namespace.apply(scaler)
    namespace.wait("two pods", lambda: ready(2), 180)
    scaler["spec"] |= {"minReplicas": 1, "maxReplicas": 1}
    namespace.apply(scaler)
    namespace.wait("one pod", lambda: ready(1), 120)
    assert namespace.boot_of("elastic") == boot
    assert namespace.get("infsrv", "elastic")["spec"]["replicas"] == 1
    namespace.kubectl("delete", "hpa", "elastic")
    namespace.kubectl("delete", "infsrv", "elastic", "--timeout=60s", timeout=70)


def test_scaling_from_one_to_three_and_back_drains_one_pod_after_the_other(namespace: Namespace) -> None:
    namespace.ready("many")
    namespace.kubectl("scale", "infsrv/many", "--replicas=3")
    namespace.wait("three pods", lambda: namespace.get("infsrv", "many")["status"].get("readyReplicas") == 3, 240)
    order: list[str] = []

    def one_pod() -> bool:
        names = namespace.kubectl("get", "pods", "-l", "app.kubernetes.io/instance=many", "-o", "name").split()
        order.extend(gone for gone in ("many-2", "many-1") if f"pod/{gone}" not in names and gone not in order)
        return len(names) == 1

    with Traffic(namespace, "many", causes=["scale-down"], replicas=3, workers=6, streams=3,
                 stream_pieces=16) as traffic:  # fmt: skip
        for victim in (1, 2):
            traffic.settled(ordinal=victim)
        namespace.kubectl("scale", "infsrv/many", "--replicas=1")
        namespace.wait("one pod", one_pod, 150)
        namespace.wait("the last pod tells of both lost boots", lambda: {"1", "2"} <= {
            e["session"].split(".")[0] for e in traffic.events if e["what"] == "lost"}, 60)  # fmt: skip
    traffic.check()
    assert order == ["many-2", "many-1"]
    assert set(traffic.result["causes"]) == {"scale-down"}, traffic.result
    lost = [e for e in traffic.events if e["what"] == "lost"]
    assert not any(e["session"].startswith("0.") for e in lost), lost
    namespace.kubectl("delete", "infsrv", "many", "--timeout=60s", timeout=70)
