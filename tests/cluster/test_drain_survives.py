"""A drain outlives the operator: the deadline is on the pod, not in the operator's memory."""

import json

import pytest

from tests.cluster.kube import OPERATOR, OPERATOR_PODS, SYSTEM, Namespace, image_of, inference_server

pytestmark = pytest.mark.cluster

TURN = """
import json, sys, urllib.error, urllib.request
url, session, text = sys.argv[1:4]
def call(path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, json.loads(answer.read())
if session == "-":
    session = call("/v1/sessions", {})[1]["id"]
body = {"model": "chat", "session_id": session, "messages": [{"role": "user", "content": text}]}
status, answer = call("/v1/chat/completions", body)
print(json.dumps({"session": session, "status": status, "body": answer}))
"""


def turn(namespace: Namespace, server: str, session: str, text: str) -> dict[str, object]:
    url = f"http://{server}.{namespace.name}.svc:8000"
    return dict(json.loads(namespace.run_python("client", TURN, url, session, text)))


def drain_of(namespace: Namespace, server: str) -> dict[str, str] | None:
    pods = namespace.get("infsrv", server).get("status", {}).get("pods", [])
    return next((dict(pod["drain"]) for pod in pods if pod.get("drain")), None)


def test_a_drain_goes_on_with_the_same_deadline_after_the_operator_was_killed(namespace: Namespace) -> None:
    # A grace of 25 s keeps the drain open while the operator is away.
    namespace.apply(inference_server("steady", gpu={"none": True}, drain={"idleGrace": "25s", "sessionTimeout": "5m"}))
    found = namespace.wait_condition("steady", "Ready", status="True", seconds=120)
    boot = found["status"]["pods"][0]["bootId"]
    first = turn(namespace, "steady", "-", "Hello! My name is Mara.")
    assert first["status"] == 200, first
    session = str(first["session"])

    namespace.patch("infsrv", "steady", {"spec": {"restart": {"id": "one"}}})
    before = namespace.wait("a drain", lambda: drain_of(namespace, "steady"))
    force = ["--grace-period=0", "--force", "--wait"]
    namespace.cluster.kubectl("-n", SYSTEM, "delete", "pod", *OPERATOR_PODS, *force)
    second = turn(namespace, "steady", session, "What is my name?")
    assert second["status"] == 200, second
    assert "Mara" in json.dumps(second["body"])
    namespace.cluster.kubectl("-n", SYSTEM, "rollout", "status", OPERATOR, "--timeout=60s", timeout=70)
    after = namespace.wait("the drain is still there", lambda: drain_of(namespace, "steady"))
    assert after["deadline"] == before["deadline"]

    def replaced() -> dict[str, object] | None:
        pods = namespace.get("infsrv", "steady")["status"].get("pods", [])
        return next((pod for pod in pods if pod.get("bootId") not in (None, boot) and pod["state"] == "Serving"), None)

    namespace.wait("the replaced pod serves", replaced, seconds=150)
    lost = turn(namespace, "steady", session, "What is my name?")
    assert lost["status"] == 410, lost
    error = dict(lost["body"])["error"]  # type: ignore[call-overload]
    assert error["code"] == "session_lost"
    assert error["cause"] == "restart"


OPENAI = """
import sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
stream = client.chat.completions.create(
    model="chat", stream=True, messages=[{"role": "user", "content": "What is the capital of Portugal?"}]
)
pieces = [c.choices[0].delta.content for c in stream if c.choices and c.choices[0].delta.content]
print(len(pieces), "".join(pieces))
"""


def test_the_openai_client_streams_through_the_service_from_a_pod(namespace: Namespace) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "openai"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "openai",
                    "image": image_of("client"),
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-c", OPENAI, f"http://steady.{namespace.name}.svc:8000"],
                }
            ],
        },
    }
    namespace.wait_condition("steady", "Ready", status="True", seconds=120)
    namespace.apply(pod)
    namespace.kubectl("wait", "pod/openai", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s", timeout=100)
    pieces, text = namespace.kubectl("logs", "openai").strip().split(" ", 1)
    assert text == "The capital of Portugal is Lisbon."
    assert int(pieces) > 1
