"""What a user gets wrong is told with the field or the reason, and hurts nothing else."""

import json

import pytest

from tests.cluster.kube import Namespace, condition, image_of, inference_server, kill_server

pytestmark = pytest.mark.cluster

CPU = {"none": True}
ASK = """
import json, sys, urllib.error, urllib.request
url, body = sys.argv[1], sys.argv[2].encode()
request = urllib.request.Request(url, body, {"content-type": "application/json"})
try:
    answer = urllib.request.urlopen(request, timeout=30)
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps({"status": answer.status, "headers": dict(answer.headers), "body": json.loads(answer.read())}))
"""


@pytest.fixture(scope="module", autouse=True)
def mortal(namespace: Namespace) -> None:
    """A server that nothing is wrong with; it comes up beside the others."""
    namespace.apply(inference_server("mortal", gpu=CPU))


def test_a_malformed_resource_is_refused_with_the_name_of_the_field(namespace: Namespace) -> None:
    two = inference_server("two", model={"source": {"embedded": {}, "pvc": {"claimName": "c"}}, "preset": "tiny"})
    assert "spec.model.source" in namespace.refused(two) or "source" in namespace.refused(two)
    negative = inference_server("negative", replicas=-1)
    assert "spec.replicas" in namespace.refused(negative)
    unit = inference_server("unit", limits={"sessions": {"bytes": "12Q"}})
    assert "spec.limits.sessions.bytes" in namespace.refused(unit)


def test_no_free_gpu_is_waiting_for_gpu(namespace: Namespace) -> None:
    namespace.apply(inference_server("greedy", gpu={"resourceName": "example.com/none"}))
    found = namespace.wait_condition("greedy", "Ready", status="False", reason="WaitingForGPU")
    assert "example.com/none" in condition(found, "Ready")["message"]
    namespace.kubectl("delete", "infsrv", "greedy", "--timeout=30s", timeout=40)


def test_an_image_that_cannot_be_pulled_is_image_pull_failed(namespace: Namespace) -> None:
    image = {"reference": "localhost/carousel/absent:none", "pullPolicy": "Never"}
    namespace.apply(inference_server("imageless", gpu=CPU, image=image))
    found = namespace.wait_condition("imageless", "Ready", status="False", reason="ImagePullFailed")
    assert "localhost/carousel/absent:none" in condition(found, "Ready")["message"]
    namespace.kubectl("delete", "infsrv", "imageless", "--timeout=30s", timeout=40)


def test_a_missing_secret_is_named(namespace: Namespace) -> None:
    namespace.apply(inference_server("keyless", gpu=CPU, auth={"apiKeysSecretRef": {"name": "no-such-secret"}}))
    found = namespace.wait_condition("keyless", "Ready", status="False", reason="SecretMissing")
    assert "no-such-secret" in condition(found, "Ready")["message"]
    namespace.kubectl("delete", "infsrv", "keyless", "--timeout=30s", timeout=40)


def test_limits_that_do_not_fit_are_told_before_any_pod(namespace: Namespace) -> None:
    namespace.apply(inference_server("huge", gpu=CPU, resources={"hostMemory": "64Mi"}))
    found = namespace.wait_condition("huge", "Ready", status="False", reason="LimitsDoNotFit")
    assert "hostMemory is 64Mi" in condition(found, "Ready")["message"]
    assert "huge-0" not in namespace.kubectl("get", "pods", "-o", "name")
    namespace.kubectl("delete", "infsrv", "huge", "--timeout=30s", timeout=40)


def test_an_unknown_field_in_a_chat_is_400_with_its_name(namespace: Namespace) -> None:
    namespace.ready("mortal")
    body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "temprature": 1})
    url = f"http://mortal.{namespace.name}.svc:8000/v1/chat/completions"
    told = json.loads(namespace.run_python("client", ASK, url, body))
    assert told["status"] == 400
    assert told["body"]["error"]["param"] == "temprature"
    assert "temperature" in told["body"]["error"]["message"]


@pytest.mark.full
def test_a_dead_pod_is_told_and_healed(namespace: Namespace) -> None:
    """Without traffic; test_faults.py has the row of CI."""
    boot = namespace.serving_boot("mortal")
    kill_server(namespace, "mortal-0")
    after = namespace.other_boot("mortal", boot)
    assert after["lastExit"], "status.pods[].lastExit tells how the earlier process ended"


def test_the_images_run_as_a_user_without_privilege(namespace: Namespace) -> None:
    uid = namespace.run_python("client", "import os; print(os.getuid())").strip()
    assert uid != "0", f"{image_of('server')} runs as root"
