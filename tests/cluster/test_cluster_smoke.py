"""The local cluster itself works: what the operator's tests take for granted, shown without the operator."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.cluster.kube import Cluster, CommandError, Namespace, image_of

pytestmark = pytest.mark.cluster

SERVE = "import http.server as h; h.ThreadingHTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
HELD = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"
FREE_GPUS = '{range .items[*]}{.status.allocatable.nvidia\\.com/gpu}{"\\n"}{end}'


@pytest.fixture(scope="module")
def plain(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace without the operator."""
    found = Namespace(cluster, "t-cluster-smoke")
    found.delete()
    found.create()
    yield found
    found.end()


def pod(name: str, *command: str, **spec: Any) -> dict[str, Any]:
    """A pod of the client's image; `resources` go to its container, the rest to the pod."""
    container = {
        "name": "main",
        "image": image_of("client"),
        "imagePullPolicy": "IfNotPresent",
        "command": list(command) or ["python3", "-c", SERVE],
        "workingDir": "/tmp",
        "resources": spec.pop("resources", {}),
        "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }


def ready(plain: Namespace, *names: str) -> None:
    for name in names:
        plain.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=40s", timeout=50)


def test_pods_of_both_nodes_reach_a_service_by_its_name(plain: Namespace) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    plain.apply(pod("web", nodeName="node-1"), service, pod("near", nodeName="node-1"), pod("far", nodeName="node-2"))
    ready(plain, "web", "near", "far")
    for name in (f"web.{plain.name}", f"web.{plain.name}.svc.cluster.local"):
        ask = f"import httpx; print(httpx.get('http://{name}', timeout=5).status_code)"
        for asker in ("near", "far"):
            status = plain.wait(f"{asker} reaches {name}", partial(plain.run_python, asker, ask))
            assert status.strip() == "200"


def test_a_service_account_may_do_what_its_role_says_and_no_more(plain: Namespace) -> None:
    plain.kubectl("create", "serviceaccount", "reader")
    plain.kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods")
    plain.kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={plain.name}:reader")
    who = f"--as=system:serviceaccount:{plain.name}:reader"
    plain.wait("the role is in force", lambda: plain.kubectl(who, "get", "pods", "-o", "name"))
    with pytest.raises(CommandError, match="forbidden"):
        plain.kubectl(who, "get", "secrets")


def test_fake_gpus_are_scheduled_like_real_ones(plain: Namespace, cluster: Cluster) -> None:
    counts = cluster.kubectl("get", "nodes", "-o", f"jsonpath={FREE_GPUS}").split()
    assert sum(map(int, counts)) == 3, f"two nodes with 2 and 1 fake GPUs are expected, these have {counts}"
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    plain.apply(pod("gpu", resources=resources), pod("greedy", resources={"limits": {"nvidia.com/gpu": "3"}}))
    ready(plain, "gpu")
    ids = plain.run_python("gpu", "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])").strip()
    assert ids.startswith("GPU-fake-")
    told = plain.wait("greedy is refused", lambda: json.dumps(plain.get("pod", "greedy")["status"].get("conditions")))
    assert "Insufficient nvidia.com/gpu" in told
    plain.kubectl("delete", "pod", "gpu", "greedy", "--wait=true", timeout=40)


def test_memory_is_resized_in_place(plain: Namespace) -> None:
    plain.apply(pod("elastic", resources={"requests": {"memory": "64Mi"}, "limits": {"memory": "64Mi"}}))
    ready(plain, "elastic")
    more = {"requests": {"memory": "128Mi"}, "limits": {"memory": "128Mi"}}
    patch = json.dumps({"spec": {"containers": [{"name": "main", "resources": more}]}})
    plain.kubectl("patch", "pod", "elastic", "--subresource", "resize", "-p", patch)
    limit = str(128 << 20)
    plain.wait(
        "the cgroup's new limit", lambda: plain.kubectl("exec", "elastic", "--", "sh", "-c", HELD).strip() == limit
    )
    status = plain.get("pod", "elastic")["status"]["containerStatuses"][0]
    assert status["restartCount"] == 0


def test_a_disruption_budget_refuses_an_eviction(plain: Namespace, cluster: Cluster) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }
    plain.apply(pod("kept"), budget)
    ready(plain, "kept")
    path = f"/api/v1/namespaces/{plain.name}/pods/kept/eviction"
    eviction = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "kept"}})

    def evict() -> str:
        return cluster.kubectl("create", "--raw", path, "-f", "-", stdin=eviction)

    plain.wait("the budget counts its pod", lambda: plain.get("pdb", "keep")["status"].get("currentHealthy") == 1)
    with pytest.raises(CommandError, match="disruption budget"):
        evict()
    plain.kubectl("delete", "pdb", "keep")
    assert "Success" in evict()
    plain.kubectl("wait", "pod/kept", "--for=delete", "--timeout=30s", timeout=40)


def test_an_image_is_mounted_as_a_volume(plain: Namespace) -> None:
    volume = {"name": "files", "image": {"reference": image_of("client"), "pullPolicy": "IfNotPresent"}}
    files = pod("files", volumes=[volume])
    files["spec"]["containers"][0]["volumeMounts"] = [{"name": "files", "mountPath": "/files", "readOnly": True}]
    plain.apply(files)
    ready(plain, "files")
    assert "pyvenv.cfg" in plain.kubectl("exec", "files", "--", "ls", "/files/opt/carousel")


def test_the_images_carry_only_what_their_part_needs(plain: Namespace) -> None:
    ask = "import importlib.util as u; print(*[n for n in ('torch', 'kopf', 'carousel_server') if u.find_spec(n)])"
    holds = {"server": "torch carousel_server", "operator": "kopf carousel_server"}
    for part in holds:
        asked = pod(f"has-{part}", "python3", "-c", ask, restartPolicy="Never")
        asked["spec"]["containers"][0]["image"] = image_of(part)
        plain.apply(asked)
    for part, packages in holds.items():
        ended = "--for=jsonpath={.status.phase}=Succeeded"
        plain.kubectl("wait", f"pod/has-{part}", ended, "--timeout=60s", timeout=70)
        assert plain.kubectl("logs", f"has-{part}").strip() == packages
