"""A model from a hub: downloaded by the init container, through broken connections, with its progress told."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kube import Namespace, condition, image_of, inference_server

pytestmark = [pytest.mark.cluster, pytest.mark.full]
HUB = Path(__file__).with_name("hub.py")


def start_hub(namespace: Namespace, pause: float = 0.3) -> None:
    """A hub behind the Service `hub`. 28 MiB take 225 pauses: 70 s, so that the status tells counts (every 30 s)."""
    container = {
        "name": "hub",
        "image": image_of("server"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "/hub/hub.py"],
        "env": [{"name": "PAUSE", "value": str(pause)}],
        "volumeMounts": [{"name": "hub", "mountPath": "/hub"}],
    }
    namespace.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hub"}, "data": {"hub.py": HUB.read_text()}},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "hub", "labels": {"app": "hub"}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
                "volumes": [{"name": "hub", "configMap": {"name": "hub"}}],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "hub"},
            "spec": {"selector": {"app": "hub"}, "ports": [{"port": 8080}]},
        },
    )
    namespace.kubectl("wait", "pod/hub", "--for=condition=Ready", "--timeout=60s", timeout=70)


@pytest.fixture(scope="module")
def hub(namespace: Namespace) -> Namespace:
    """A namespace with a hub."""
    start_hub(namespace)
    return namespace


def from_hub(name: str, repo: str) -> dict[str, Any]:
    """An InferenceServer of this repository of the hub."""
    return inference_server(
        name,
        model={"source": {"hf": {"repo": repo, "revision": "main"}}, "preset": "tiny"},
        gpu={"none": True},
        resources={"cpu": "100m"},
        pod={"env": [{"name": "HF_ENDPOINT", "value": "http://hub:8080"}]},
    )


def test_a_download_survives_broken_connections_and_tells_its_progress(hub: Namespace) -> None:
    hub.apply(from_hub("fetched", "test/tiny"))
    seen: set[int] = set()

    def ready() -> bool:
        found = hub.get("infsrv", "fetched")
        for pod in found.get("status", {}).get("pods", []):
            if pod["state"] == "DownloadingModel" and pod.get("progress"):
                seen.add(pod["progress"])
        return condition(found, "Ready").get("status") == "True"

    hub.wait("the server is ready", ready, 240)
    assert [progress for progress in seen if 0 < progress < 100]
    resumed = [line for line in hub.kubectl("logs", "hub").splitlines() if line.startswith("model.safetensors from")]
    assert len(resumed) == 3, resumed
    assert int(resumed[1].split()[2].rstrip(":")) > 0
    hub.kubectl("delete", "infsrv", "fetched", "--timeout=30s", timeout=40)


def test_a_repository_that_does_not_exist_is_model_missing(hub: Namespace) -> None:
    hub.apply(from_hub("lost", "test/other"))
    found = hub.wait_condition("lost", "Ready", status="False", reason="ModelMissing", seconds=90)
    assert "test/other" in condition(found, "Ready")["message"]
    hub.kubectl("delete", "infsrv", "lost", "--timeout=30s", timeout=40)
