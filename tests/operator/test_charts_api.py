"""The charts, rendered by the real helm and applied to a real API server with RBAC on."""

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from carousel_operator import crd, manifests, names

from tests.operator.apiserver import ApiServer, helm
from tests.operator.specs import spec

pytestmark = pytest.mark.api
ROOT = Path(__file__).resolve().parents[2]
CHART, CRDS = str(ROOT / "charts/carousel"), str(ROOT / "charts/carousel-crds")
Object = dict[str, Any]


def rendered(*flags: str, chart: str = CHART, namespace: str = "carousel-system") -> list[Object]:
    """Objects of a chart."""
    return [o for o in yaml.safe_load_all(helm("template", "carousel", chart, "-n", namespace, *flags)) if o]


def kinds(objects: list[Object]) -> set[str]:
    return {o["kind"] for o in objects}


@pytest.mark.parametrize("chart", [CHART, CRDS], ids=["carousel", "carousel-crds"])
def test_lint_finds_nothing(chart: str) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", chart)


def test_the_rendered_manifest_is_what_helm_renders() -> None:
    assert (ROOT / manifests.RENDERED).read_text() == manifests.render(ROOT)


def test_the_chart_of_the_crd_holds_the_crd_and_keeps_it_on_uninstall() -> None:
    (found,) = rendered(chart=CRDS)
    assert found["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
    assert found == crd.custom_resource_definition()
    (left,) = rendered("--set", "keep=false", chart=CRDS)
    assert "helm.sh/resource-policy" not in left["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("flag", "field"),
    [
        ("replicas=2", "replicas"),
        ("logLevel=loud", "logLevel"),
        ("namespaces=all", "namespaces"),
        ("image.tag=a b", "tag"),
        ("image.digest=x", "digest"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(flag: str, field: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered("--set", flag)
    assert field in str(refused.value.stderr)


def test_one_operator_at_a_time_without_rights_it_does_not_need() -> None:
    deployment = next(o for o in rendered() if o["kind"] == "Deployment")["spec"]
    pod = deployment["template"]["spec"]
    container = pod["containers"][0]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert {port["containerPort"] for port in container["ports"]} == {8080, 9090}


def test_the_operators_pods_are_who_network_policies_let_in() -> None:
    deployment = next(o for o in rendered() if o["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels[names.LABEL_NAME] == names.OPERATOR_COMPONENT


def test_namespaced_mode_has_roles_only_and_tells_the_operator() -> None:
    found = rendered("--set", "namespaces={a,b}")
    assert not kinds(found) & {"ClusterRole", "ClusterRoleBinding"}
    assert sorted(o["metadata"]["namespace"] for o in found if o["kind"] == "Role") == ["a", "b", "carousel-system"]
    env = next(o for o in found if o["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {e["name"]: e.get("value") for e in env}["CAROUSEL_OPERATOR_NAMESPACES"] == "a,b"


def test_everything_that_can_be_chosen_reaches_the_deployment() -> None:
    found = rendered(
        *("--set", "image.tag=t", "--set", "imagePullSecrets={p}", "--set", "serviceAccount.name=sa"),
        *("--set", "podLabels.a=b", "--set", "podAnnotations.c=d", "--set", "nodeSelector.e=f"),
        *("--set", "tolerations[0].operator=Exists", "--set", "priorityClassName=high", "--set", "podMonitor=true"),
        *("--set-json", 'affinity={"nodeAffinity":{}}', "--set", "logLevel=debug"),
    )
    template = next(o for o in found if o["kind"] == "Deployment")["spec"]["template"]
    pod, meta = template["spec"], template["metadata"]
    assert pod["containers"][0]["image"] == "localhost/carousel/operator:t"
    assert (pod["imagePullSecrets"], pod["serviceAccountName"]) == ([{"name": "p"}], "sa")
    assert (meta["labels"]["a"], meta["annotations"]) == ("b", {"c": "d"})
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"e": "f"}, [{"operator": "Exists"}])
    assert (pod["priorityClassName"], pod["affinity"]) == ("high", {"nodeAffinity": {}})
    assert {"PodMonitor", "ClusterRole"} <= kinds(found)


def may(api: ApiServer, account: str, verb: str, resource: str, namespace: str) -> bool:
    """Whether the operator's service account may do this."""
    group, _, plural = resource.rpartition("/")
    plural, _, subresource = plural.partition(":")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:carousel-system:{account}",
            "resourceAttributes": {
                "verb": verb,
                "group": group,
                "resource": plural,
                "subresource": subresource,
                "namespace": namespace,
            },
        },
    }
    answer = api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def soon(check: Callable[[], bool]) -> bool:
    """True when it becomes true within 20 s: the authorizer learns of a new role by a watch."""
    deadline = time.monotonic() + 20
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def install(api: ApiServer, *flags: str) -> str:
    """Apply the chart; the name of the service account."""
    found = rendered(*flags)
    spaces = {o["metadata"]["namespace"] for o in found if "namespace" in o["metadata"]}
    api.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in sorted(spaces)])
    api.apply([o for o in found if o["kind"] != "PodMonitor"])
    return str(next(o for o in found if o["kind"] == "ServiceAccount")["metadata"]["name"])


def test_the_role_of_a_namespace_ends_at_its_border(api: ApiServer) -> None:
    account = install(api, "--set", "namespaces={one}", "--set", "serviceAccount.name=narrow", "--set", "podLabels.x=y")
    allowed = (("patch", "carousel.dev/inferenceservers:status"), ("create", "secrets"), ("delete", "pods"))
    for verb, resource in allowed:
        assert soon(partial(may, api, account, verb, resource, "one"))
        assert not may(api, account, verb, resource, "default")
    assert not may(api, account, "list", "nodes", "")
    assert not may(api, account, "create", "pods", "one")
    assert not may(api, account, "delete", "carousel.dev/inferenceservers", "one")


@pytest.mark.parametrize("watched", ["", "watched"], ids=["all namespaces", "one namespace"])
def test_the_operator_reconciles_with_no_more_than_the_rights_of_the_chart(
    api: ApiServer, tmp_path: Path, watched: str
) -> None:
    namespace = watched or "default"
    account = install(
        api,
        *("--set", f"serviceAccount.name={'some' if watched else 'every'}"),
        *(("--set", f"namespaces={{{watched}}}") if watched else ()),
    )
    token = api.kubectl("create", "token", account, "-n", "carousel-system").strip()
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "rights", "namespace": namespace},
        "spec": spec(networkPolicy={"enabled": True}, auth={"apiKeysSecretRef": {"name": "keys"}}),
    }
    api.apply(body)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "carousel_operator", "--kubeconfig", kubeconfig(api, tmp_path, token)),
                *("--health", "", "--metrics-port", "0", "--operator-namespace", "carousel-system"),
                *(("--namespace", watched) if watched else ()),
            ],
            stdout=log,
            stderr=log,
            env={**os.environ, "KUBECONFIG": ""},
        )
        try:
            status = wait_for_status(api, namespace)
        finally:
            process.terminate()
            process.wait(20)
    # Without a ClusterRole the CRD cannot be read; the operator says so once and goes on.
    lines = (tmp_path / "log").read_text().splitlines()
    said = "\n".join(line for line in lines if not (watched and "customresourcedefinitions" in line))
    assert not re.search(r"(?<!,)\b403\b", said), said[-3000:]  # ",403" is a time stamp's milliseconds
    before_the_signal, _, _ = said.partition("SIGTERM is received")  # kopf may complain of a watch that it broke off
    assert "Traceback" not in before_the_signal, said[-3000:]
    assert "orbidden" not in said, said[-3000:]
    assert status["observedGeneration"] == 1
    assert {c["type"] for c in status["conditions"]} == set(names.CONDITIONS)
    api.kubectl("delete", "infsrv", "rights", "-n", namespace)


def kubeconfig(api: ApiServer, folder: Path, token: str) -> str:
    """A kubeconfig of the service account."""
    config = json.loads(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    authority = base64.b64encode(api.ca.read_bytes()).decode()
    config["clusters"][0]["cluster"] = {"server": api.url, "certificate-authority-data": authority}
    (folder / "kubeconfig").write_text(json.dumps(config))
    return str(folder / "kubeconfig")


def wait_for_status(api: ApiServer, namespace: str) -> Object:
    """The status, once the StatefulSet is there and the status tells of it."""
    deadline = time.monotonic() + 120
    found: Object = {}
    while time.monotonic() < deadline:
        found = api.get("infsrv", "rights", "-n", namespace).get("status", {})
        if found.get("observedGeneration") and api.get("statefulsets", "-n", namespace)["items"]:
            return found
        time.sleep(0.3)
    raise AssertionError(f"no StatefulSet and status within 120 s; the status is {found}")
