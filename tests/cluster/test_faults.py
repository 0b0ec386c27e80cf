"""Unannounced deaths under traffic: broken connections are allowed and counted, and the next turn is 410 or 503."""

import json

import pytest

from tests.cluster.kube import Namespace, kill_server, operator_stopped
from tests.cluster.scenario import QUICK, Traffic, scripted_server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def doomed(namespace: Namespace) -> Namespace:
    """A namespace that a row deletes, and its server. A namespace looks for its pods again after their grace period."""
    found = Namespace(namespace.cluster, "t-doomed")
    found.create()
    found.apply(scripted_server("doomed", drain=QUICK | {"requestTimeout": "0s"}))
    return found


def told_and_served(traffic: Traffic) -> bool:
    """Whether a session has been lost and a turn has gone through after that."""
    happened = [event["what"] for event in traffic.events]
    return "lost" in happened and "turn" in happened[happened.index("lost") :]


def test_a_crashed_boot_is_told_with_its_cause_by_the_replaced_process(namespace: Namespace) -> None:
    namespace.apply(scripted_server("crash"))
    boot = namespace.serving_boot("crash")
    with Traffic(namespace, "crash", causes=["crash", "unknown"], broken=True, stream_pieces=24,
                 stream_errors=["server_shutdown"]) as traffic:  # fmt: skip
        traffic.settled()
        kill_server(namespace, "crash-0")
        namespace.other_boot("crash", boot)
        namespace.wait("a session learns of it, others go on", lambda: told_and_served(traffic), 60)
    traffic.check()
    assert namespace.pods_of("crash")[0]["lastExit"], "the earlier exit is in status.pods"


ASK = """
import json, sys, urllib.error, urllib.request
session, *hosts = sys.argv[1:]
body = {"model": "chat", "session_id": session, "messages": [{"role": "user", "content": "Hi"}]}
for host in hosts:
    url = f"http://{host}:8000/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        answer = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        answer = error
    print(json.dumps([answer.status, json.loads(answer.read()).get("error")]))
"""


@pytest.mark.full
def test_a_crashed_boot_is_told_with_its_cause_by_the_replaced_pod_and_by_its_peer(namespace: Namespace) -> None:
    namespace.apply(scripted_server("pair", replicas=2))
    namespace.ready("pair")
    boot = namespace.boot_of("pair", 1)
    with Traffic(namespace, "pair", causes=["crash", "unknown"], broken=True, replicas=2, workers=4, streams=2,
                 stream_pieces=24, stream_errors=["server_shutdown", "owner_unreachable"]) as traffic:  # fmt: skip
        traffic.settled(ordinal=1)
        kill_server(namespace, "pair-1")
        namespace.other_boot("pair", boot, ordinal=1)
        namespace.wait("a session learns of it, others go on", lambda: told_and_served(traffic), 60)
    traffic.check()
    lost = next(e["session"] for e in traffic.events if e["what"] == "lost")
    assert lost.startswith("1."), lost
    hosts = [f"pair-{ordinal}.pair-pods.{namespace.name}.svc" for ordinal in (0, 1)]
    told = [json.loads(line) for line in namespace.run_python("client", ASK, lost, *hosts).splitlines()]
    assert [(status, error["code"], error["cause"]) for status, error in told] == [(410, "session_lost", "crash")] * 2


def test_what_is_deleted_while_the_operator_is_down_leaves_nothing(namespace: Namespace, doomed: Namespace) -> None:
    namespace.ready("crash")
    doomed.ready("doomed")
    children = ("get", "statefulset,service,configmap,secret,pdb,pod", "-o", "name")
    assert "crash" in namespace.kubectl(*children)
    with operator_stopped(namespace.cluster):
        namespace.kubectl("delete", "infsrv", "crash", "--timeout=20s", timeout=30)
        doomed.delete()
        assert doomed.name not in namespace.cluster.kubectl("get", "namespaces", "-o", "name")
        namespace.wait("no child is left", lambda: "crash" not in namespace.kubectl(*children), 90)
