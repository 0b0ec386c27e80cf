"""What nodes and the control plane do to pods with sessions: cordon, drain, a lost API server."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kube import CLUSTER_DIR, Namespace
from tests.cluster.scenario import QUICK, Traffic, scripted_server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NODE = {"nodeSelector": {"carousel.dev/test": "nodes"}}
DRAIN = QUICK | {"sessionTimeout": "10s"}  # the API server is away, and back, within it


def label(namespace: Namespace, *nodes: str) -> None:
    """Only these nodes may run the module's pods."""
    for node in ("node-1", "node-2"):
        mark = "carousel.dev/test=nodes" if node in nodes else "carousel.dev/test-"
        namespace.cluster.kubectl("label", "node", node, mark, "--overwrite")


@pytest.fixture(scope="module", autouse=True)
def no_label_left(namespace: Namespace) -> Iterator[None]:
    """After the module no node has its label."""
    yield
    label(namespace)


def test_kubectl_drain_waits_for_a_live_stream_that_ends_by_itself(namespace: Namespace) -> None:
    label(namespace, "node-2")
    namespace.apply(scripted_server("moved", pod=NODE, drain=DRAIN))
    boot = namespace.serving_boot("moved")
    with Traffic(namespace, "moved", causes=["eviction", "cordon"], refused=True, stream_pieces=24) as traffic:
        traffic.settled()
        label(namespace, "node-1", "node-2")
        try:
            selector = "--pod-selector=app.kubernetes.io/instance=moved"
            namespace.cluster.kubectl(
                "drain", "node-2", "--ignore-daemonsets", "--delete-emptydir-data", selector, "--timeout=80s",
                timeout=90,
            )  # fmt: skip
        finally:
            namespace.cluster.kubectl("uncordon", "node-2")
        namespace.other_boot("moved", boot)
        namespace.wait("a session learns of it", lambda: any(e["what"] == "lost" for e in traffic.events), 60)
    traffic.check()
    whole = [e for e in traffic.events if e["what"] == "stream end" and boot in e["session"] and e["finish"]]
    assert whole, "the stream that was open at the drain ended by itself"


def test_the_pod_of_a_cordoned_node_is_moved_when_it_is_quiet(namespace: Namespace) -> None:
    boot = namespace.serving_boot("moved")
    node = namespace.get("pod", "moved-0")["spec"]["nodeName"]
    try:
        with Traffic(namespace, "moved", causes=["cordon"], stream_pieces=12) as traffic:
            traffic.settled()
            namespace.cluster.kubectl("cordon", node)
            namespace.wait("a drain", lambda: any(p.get("drain") for p in namespace.pods_of("moved")))
            time.sleep(12)  # longer than sessionTimeout: the deadline does not apply to a cordon
            assert namespace.boot_of("moved") == boot, "sessions in use keep the pod"
        traffic.check(lost=0)
        namespace.other_boot("moved", boot)
    finally:
        namespace.cluster.kubectl("uncordon", node)
    namespace.ready("moved")


def test_an_api_server_that_restarts_in_a_drain_changes_nothing_for_clients(namespace: Namespace) -> None:
    boot = namespace.serving_boot("moved")
    with Traffic(namespace, "moved", causes=["restart"], refused=True, stream_pieces=12) as traffic:
        traffic.settled()
        namespace.patch("infsrv", "moved", {"spec": {"restart": {"id": "api"}}})
        namespace.wait("a drain", lambda: any(p.get("drain") for p in namespace.pods_of("moved")))
        restart_api_server(namespace)
        namespace.other_boot("moved", boot)
        namespace.wait("a session learns of it", lambda: any(e["what"] == "lost" for e in traffic.events), 60)
    traffic.check()
    assert set(traffic.result["causes"]) == {"restart"}, traffic.result


def restart_api_server(namespace: Namespace) -> None:
    """End the API server and start it again, which takes about five seconds, with the same command and priority.

    Not longer: others try again ever more seldom, and a scheduler that sees none of the time in which one pod takes the
    place of another takes both for one, and ends.
    """
    record = CLUSTER_DIR / "pids" / "kube-apiserver"
    pid = int(record.read_text().split()[0])
    niceness = os.getpriority(os.PRIO_PROCESS, pid)
    command = [word for word in Path(f"/proc/{pid}/cmdline").read_text().split("\0") if word]
    os.kill(pid, signal.SIGKILL)
    time.sleep(1)
    with (CLUSTER_DIR / "log" / "kube-apiserver.log").open("a") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: os.setpriority(os.PRIO_PROCESS, 0, niceness),
        )
    record.write_text(f"{process.pid} {command[0]}\n")
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == niceness
    namespace.wait("the API server is back", lambda: namespace.cluster.kubectl("get", "--raw", "/readyz") == "ok", 60)
