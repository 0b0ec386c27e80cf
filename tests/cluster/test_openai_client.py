"""The OpenAI Python client talks to the Service from a pod of its own."""

import pytest

from tests.cluster.kube import Namespace, image_of, inference_server

pytestmark = pytest.mark.cluster

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
    namespace.apply(inference_server("steady", gpu={"none": True}))
    namespace.ready("steady")
    namespace.apply(pod)
    namespace.kubectl("wait", "pod/openai", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s", timeout=100)
    pieces, text = namespace.kubectl("logs", "openai").strip().split(" ", 1)
    assert text == "The capital of Portugal is Lisbon."
    assert int(pieces) > 1
