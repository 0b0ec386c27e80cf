"""What a pod gets by a claim or mounts: models and caches on volumes made by hand, an image, a device of no driver."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import carousel_server
import pytest

from tests.cluster.hub import REPO
from tests.cluster.kube import CLUSTER_DIR, ROOT, CommandError, Namespace, condition, inference_server, run, tool
from tests.cluster.test_model_from_hub import from_hub, start_hub
from tests.cluster.volumes import Volumes, volumes_of

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(600)]

CHECKPOINT = Path(carousel_server.__file__).parent / "embedded"
CPU = {"none": True}
ASK = """
import json, sys, urllib.request
body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "What is 2 plus 2?"}]}).encode()
request = urllib.request.Request(sys.argv[1], body, {"content-type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


@pytest.fixture(scope="module")
def volumes(namespace: Namespace) -> Iterator[Volumes]:
    """A storage class of the module's namespace, and what is made of it."""
    with volumes_of(namespace) as found:
        yield found


def reply(namespace: Namespace, server: str) -> str:
    """What the server's model says to a question, through the Service."""
    url = f"http://{server}.{namespace.name}.svc:8000/v1/chat/completions"
    return str(json.loads(namespace.run_python("client", ASK, url))["choices"][0]["message"]["content"])


def delete(namespace: Namespace, *servers: str) -> None:
    namespace.kubectl("delete", "infsrv", *servers, "--wait=false")


def test_a_folder_of_a_claim_is_served_and_cannot_be_written(namespace: Namespace, volumes: Volumes) -> None:
    shutil.copytree(CHECKPOINT, volumes.add("models") / "chat" / "tiny")
    volumes.claim("models", "models")
    source = {"pvc": {"claimName": "models", "path": "chat/tiny"}}
    namespace.apply(inference_server("claimed", gpu=CPU, model={"source": source, "preset": "tiny"}))
    namespace.ready("claimed")
    assert "4" in reply(namespace, "claimed")
    with pytest.raises(CommandError, match="Read-only file system"):
        namespace.kubectl("exec", "claimed-0", "--", "touch", "/models/written")
    delete(namespace, "claimed")


def test_each_replica_fills_a_cache_of_its_own_once(namespace: Namespace, volumes: Volumes) -> None:
    folders = [volumes.add(f"cache-{node}", node=node) for node in ("node-1", "node-2")]
    start_hub(namespace, pause=0.02)
    cache = {"perReplica": {"size": "512Mi", "storageClassName": volumes.storage_class}}
    server = from_hub("cached", REPO)
    server["spec"] |= {"replicas": 2, "cache": cache}
    namespace.apply(server)
    namespace.wait(
        "both pods are ready",
        lambda: namespace.get("infsrv", "cached").get("status", {}).get("readyReplicas") == 2,
        240,
    )
    bound = {name: namespace.get("pvc", name)["spec"]["volumeName"] for name in ("cache-cached-0", "cache-cached-1")}
    assert len(set(bound.values())) == 2, bound
    kept = [sum(path.stat().st_size for path in folder.rglob("model.safetensors")) for folder in folders]
    assert kept == [(CHECKPOINT / "model.safetensors").stat().st_size] * 2
    log = namespace.kubectl("logs", "hub")
    assert log.count("model.safetensors from 0:") == 2, log

    namespace.kubectl("delete", "pod", "hub", "--grace-period=0", "--force")  # nothing can be fetched any more
    for ordinal in (0, 1):
        boot = namespace.boot_of("cached", ordinal)
        namespace.kubectl("delete", "pod", f"cached-{ordinal}", "--wait=false")
        namespace.other_boot("cached", boot, ordinal)
    assert "4" in reply(namespace, "cached")
    delete(namespace, "cached")


def test_a_claim_that_does_not_exist_is_model_missing(namespace: Namespace) -> None:
    source = {"pvc": {"claimName": "no-such-claim"}}
    namespace.apply(inference_server("claimless", gpu=CPU, model={"source": source, "preset": "tiny"}))
    found = namespace.wait_condition("claimless", "Ready", status="False", reason="ModelMissing")
    assert "PersistentVolumeClaim no-such-claim" in condition(found, "Ready")["message"]
    delete(namespace, "claimless")


def test_a_device_claim_that_no_driver_allocates_waits_for_a_gpu(namespace: Namespace) -> None:
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": namespace.name}}
    namespace.apply(kind | {"spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}})
    try:
        namespace.apply(inference_server("deviceless", gpu={"claim": {"deviceClassName": namespace.name}}))
        found = namespace.wait_condition("deviceless", "Ready", status="False", reason="WaitingForGPU")
        assert "cannot allocate all claims" in condition(found, "Ready")["message"]
        claims = json.loads(namespace.kubectl("get", "resourceclaims", "-o", "json"))["items"]
        assert [claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] for claim in claims] == [
            namespace.name
        ]
        assert "allocation" not in claims[0].get("status", {})
        delete(namespace, "deviceless")
    finally:
        namespace.cluster.kubectl("delete", "deviceclass", namespace.name, "--wait=false")


@pytest.fixture
def model_image(tmp_path: Path) -> Iterator[str]:
    """An image that holds a checkpoint and nothing else, in both nodes; by its digest, as a registry would give it."""
    tag, archive = "localhost/carousel/model:test", tmp_path / "model.tar"
    pack = [sys.executable, ROOT / "tests/cluster/kit/pack.py", "--tag", tag, "--layer", CHECKPOINT, "--out", archive]
    digest = run(pack, timeout=60).split()[1]
    run([ROOT / "tests/cluster/kit/load.sh", archive], timeout=120)
    reference = f"localhost/carousel/model@{digest}"
    for node in ("node-1", "node-2"):
        images(node, "tag", tag, reference)
    yield reference
    for node in ("node-1", "node-2"):
        images(node, "rm", tag, reference)


def images(node: str, *words: str) -> str:
    """`ctr images` on a node."""
    socket = CLUSTER_DIR / "nodes" / node / "containerd.sock"
    return run([tool("ctr", "local"), "--address", socket, "-n", "k8s.io", "images", *words], timeout=60)


def test_an_image_is_served_as_a_model(namespace: Namespace, model_image: str) -> None:
    model: dict[str, Any] = {"source": {"oci": {"reference": model_image}}, "preset": "tiny"}
    namespace.apply(inference_server("imaged", gpu=CPU, model=model))
    namespace.ready("imaged")
    assert "4" in reply(namespace, "imaged")
    namespace.kubectl("delete", "infsrv", "imaged", "--timeout=60s", timeout=70)
    namespace.wait("its pod has gone", lambda: "imaged-0" not in namespace.kubectl("get", "pods", "-o", "name"), 60)


def test_an_image_that_no_node_has_is_image_pull_failed(namespace: Namespace) -> None:
    reference = f"localhost/carousel/model@sha256:{'0' * 64}"
    model = {"source": {"oci": {"reference": reference}}, "preset": "tiny"}
    namespace.apply(inference_server("imageless", gpu=CPU, model=model))
    found = namespace.wait_condition("imageless", "Ready", status="False", reason="ImagePullFailed", seconds=90)
    assert reference in condition(found, "Ready")["message"]
    delete(namespace, "imageless")
