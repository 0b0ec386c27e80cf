"""Unannounced deaths under traffic: broken connections are allowed and counted, and the next turn is 410 or 503."""

import pytest

from tests.cluster.kube import Namespace, kill_server, operator_stopped
from tests.cluster.scenario import Traffic, scripted_server
from tests.cluster.test_rollout import QUICK, other_boot, pods, ready

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_a_crashed_boot_is_told_with_its_cause_by_the_replaced_process(namespace: Namespace) -> None:
    namespace.apply(scripted_server("crash", drain=QUICK))
    boot = ready(namespace, "crash")["status"]["pods"][0]["bootId"]
    with Traffic(namespace, "crash", causes=["crash", "unknown"], broken=True, stream_pieces=24,
                 stream_errors=["server_shutdown"]) as traffic:  # fmt: skip
        traffic.settled()
        kill_server(namespace, "crash-0")
        other_boot(namespace, "crash", boot)
        namespace.wait("a session learns of it", lambda: any(e["what"] == "lost" for e in traffic.events), 60)
    traffic.check()
    assert pods(namespace, "crash")[0]["lastExit"], "the earlier exit is in status.pods"


def test_a_namespace_is_deleted_while_the_operator_is_down(namespace: Namespace) -> None:
    other = Namespace(namespace.cluster, "t-doomed")
    other.delete()
    other.create()
    other.apply(scripted_server("doomed", drain=QUICK))
    ready(other, "doomed")
    with operator_stopped(namespace.cluster):
        other.delete()
        assert "t-doomed" not in namespace.cluster.kubectl("get", "namespaces", "-o", "name")
