"""The CRD on a real API server: every rule, bound, default and subresource, as a user meets them."""

from typing import Any

import pytest
from carousel_operator import crd, memory, names, workload
from carousel_operator.resource import InferenceServer, InferenceServerSpec
from carousel_operator.rules import SPEC_RULES
from carousel_operator.samples import SAMPLES, Sample
from carousel_server.admin_state import PeersUpdate
from hypothesis import HealthCheck, Phase, given, settings

from tests.operator.apiserver import ApiServer, Refused
from tests.operator.random_specs import specs
from tests.operator.specs import BOUND_CASES, HUB, RULE_CASES, RuleCase, at, spec

pytestmark = pytest.mark.api
PATH = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
APPLY = "application/apply-patch+yaml"


def named(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """The object without what the server gives."""
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": body}


def create(api: ApiServer, name: str, body: dict[str, Any], *, dry_run: bool = True) -> dict[str, Any]:
    """POST with strict validation; unlike an apply it cannot hit an existing object."""
    return api.call("POST", f"{PATH}?fieldValidation=Strict{'&dryRun=All' if dry_run else ''}", named(name, body))


@pytest.mark.parametrize("case", RULE_CASES, ids=lambda case: case.rule)
def test_the_api_server_keeps_the_rule(api: ApiServer, case: RuleCase) -> None:
    rule = next(rule for rule in SPEC_RULES if rule.name == case.rule)
    create(api, "rule", spec(case.accepted))
    with pytest.raises(Refused) as refused:
        create(api, "rule", spec(case.refused))
    assert rule.message in str(refused.value)
    assert f"spec{rule.field}: " in str(refused.value)


@pytest.mark.parametrize(("field", "good", "bad"), BOUND_CASES)
def test_the_api_server_keeps_the_bound(api: ApiServer, field: str, good: object, bad: object) -> None:
    create(api, "bound", spec(at(field, good)))
    with pytest.raises(Refused, match=field.replace(".", r"\.")):
        create(api, "bound", spec(at(field, bad)))


@pytest.mark.parametrize(
    ("name", "before", "accepted", "refused", "message"),
    [
        (
            "kind",
            HUB,
            at("model.source.hf.revision", "v2"),
            {"model": {"source": {"hf": None, "pvc": {"claimName": "m"}}}},
            "kind of model.source",
        ),
        ("cache-set", {}, {"replicas": 2}, {"cache": {"ephemeral": {}}}, "cache cannot change"),
        (
            "cache-size",
            at("cache.perReplica.size", "1Gi"),
            {"replicas": 2},
            at("cache.perReplica.size", "2Gi"),
            "cache cannot change",
        ),
        ("cache-gone", at("cache.ephemeral", {}), {"replicas": 2}, {"cache": None}, "cache cannot change"),
    ],
)
def test_what_cannot_change_is_refused_on_an_update(
    api: ApiServer, name: str, before: Any, accepted: Any, refused: Any, message: str
) -> None:
    made = create(api, name, spec(before), dry_run=False)
    made["spec"] = spec(before, accepted)
    made = api.call("PUT", f"{PATH}/{name}", made)
    made["spec"] = spec(before, refused)
    with pytest.raises(Refused, match=message):
        api.call("PUT", f"{PATH}/{name}", made)


@pytest.mark.parametrize(
    ("name", "accepted"), [("a" * 50, True), ("a" * 51, False), ("a.b", False), ("1a", False), ("a-1", True)]
)
def test_a_name_fits_a_service_and_a_controller_revision(api: ApiServer, name: str, accepted: bool) -> None:
    if accepted:
        create(api, name, spec())
        return
    with pytest.raises(Refused, match=r"metadata\.name must be at most 50 characters"):
        create(api, name, spec())


def test_an_unknown_field_is_refused_with_its_path(api: ApiServer) -> None:
    with pytest.raises(Refused, match=r'unknown field "spec\.limits\.sesions"'):
        create(api, "unknown", spec(limits={"sesions": {"count": 1}}))


def test_kubectl_says_what_is_wrong_in_one_line(api: ApiServer) -> None:
    with pytest.raises(Refused) as refused:
        api.apply(named("wrong", spec(gpu={"none": True, "resourceName": "nvidia.com/gpu"})))
    assert "set at most one of gpu.resourceName, claim and none" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_defaults_are_filled_in_and_parse_to_the_same_spec(api: ApiServer) -> None:
    stored = create(api, "defaults", spec())
    assert stored["spec"]["drain"]["requestTimeout"] == "2m"
    assert stored["spec"]["limits"]["sessions"] == {"count": 64, "idle": "15m"}
    assert "gpu" not in stored["spec"] or stored["spec"]["gpu"] == {}
    assert InferenceServerSpec.parse(stored["spec"]) == InferenceServerSpec.parse(spec())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.file)
def test_kubectl_apply_takes_the_sample_as_it_is(api: ApiServer, sample: Sample) -> None:
    said = api.kubectl("apply", "-f", f"manifests/samples/{sample.file}")
    assert "created" in said or "unchanged" in said or "configured" in said
    assert "unchanged" in api.kubectl("apply", "-f", f"manifests/samples/{sample.file}")
    stored = InferenceServer.parse(api.get("infsrv", sample.name))
    assert stored.spec == InferenceServerSpec.parse(sample.spec)


def test_scale_and_its_selector_are_served(api: ApiServer) -> None:
    create(api, "scaled", spec(), dry_run=False)
    api.kubectl("scale", "infsrv/scaled", "--replicas=3")
    assert api.get("infsrv", "scaled")["spec"]["replicas"] == 3
    status = {"status": {"replicas": 3, "selector": "carousel.dev/inferenceserver=scaled"}}
    api.call("PATCH", f"{PATH}/scaled/status", status, content="application/merge-patch+json")
    scale = api.call("GET", f"{PATH}/scaled/scale")
    assert scale["status"] == {"replicas": 3, "selector": "carousel.dev/inferenceserver=scaled"}


def test_a_scale_that_breaks_a_rule_is_refused(api: ApiServer) -> None:
    create(api, "single", spec(cache={"claim": {"claimName": "c"}}), dry_run=False)
    with pytest.raises(Refused, match=r"set cache\.claim\.readOnly: true"):
        api.kubectl("scale", "infsrv/single", "--replicas=2")


def test_the_columns_show_the_ready_condition_whatever_its_place(api: ApiServer) -> None:
    create(api, "columns", spec(), dry_run=False)
    at_some_time = {"lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""}
    conditions = [
        {"type": "Available", "status": "True", "reason": "Serving", **at_some_time},
        {"type": "Ready", "status": "False", "reason": "Draining", **at_some_time},
    ]
    status = {
        "conditions": conditions,
        "replicas": 2,
        "drainingReplicas": 1,
        "sessions": {"active": 7},
        "revision": {"current": "abc"},
        "url": "http://columns.default.svc:8000",
    }
    api.call("PATCH", f"{PATH}/columns/status", {"status": status}, content="application/merge-patch+json")
    head, row = api.kubectl("get", "infsrv", "columns", "-o", "wide").splitlines()
    assert head.split() == [
        "NAME",
        "READY",
        "REASON",
        "MODEL",
        "REPLICAS",
        "SESSIONS",
        "AGE",
        "DRAINING",
        "REVISION",
        "URL",
    ]
    shown = row.split()
    del shown[6]
    assert shown == ["columns", "False", "Draining", "chat", "2", "7", "1", "abc", "http://columns.default.svc:8000"]


def test_conditions_of_two_managers_live_side_by_side(api: ApiServer) -> None:
    create(api, "managers", spec(), dry_run=False)
    for manager, kind in (("one", "Ready"), ("two", "Example")):
        condition = {"type": kind, "status": "True", "reason": "X", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "managers"},
            "status": {"conditions": [condition]},
        }
        api.call("PATCH", f"{PATH}/managers/status?fieldManager={manager}", body, content=APPLY)
    assert {c["type"] for c in api.get("infsrv", "managers")["status"]["conditions"]} == {"Ready", "Example"}


def test_the_served_crd_carries_the_digest_of_this_operator(api: ApiServer) -> None:
    found = api.get("crd", f"{names.PLURAL}.{names.GROUP}")
    assert found["metadata"]["annotations"][names.ANNOTATION_SCHEMA] == crd.schema_digest()
    assert "inference" in found["spec"]["names"]["categories"]


def children_of(stored: dict[str, Any]) -> list[dict[str, Any]]:
    server = InferenceServer.parse(stored)
    return workload.children(
        server, replicas=1, plan=memory.plan_for(server.spec), peers=PeersUpdate(generation=1), limits_generation=1
    )


KIND_PATHS = {
    "ConfigMap": "/api/v1/namespaces/default/configmaps",
    "Service": "/api/v1/namespaces/default/services",
    "StatefulSet": "/apis/apps/v1/namespaces/default/statefulsets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates",
}


SHAPED_BY_THE_SPEC = ("Service", "StatefulSet", "NetworkPolicy", "ResourceClaimTemplate")


def apply_child(api: ApiServer, child: dict[str, Any]) -> str:
    """Server-side apply as the operator does it; the resource version after it."""
    path = f"{KIND_PATHS[child['kind']]}/{child['metadata']['name']}"
    query = "?fieldManager=carousel-operator&force=true&fieldValidation=Strict"
    return str(api.call("PATCH", path + query, child, content=APPLY)["metadata"]["resourceVersion"])


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.file)
def test_the_children_of_a_sample_apply_and_a_second_time_change_nothing(api: ApiServer, sample: Sample) -> None:
    api.kubectl("apply", "-f", f"manifests/samples/{sample.file}")
    children = children_of(api.get("infsrv", sample.name))
    first = [apply_child(api, child) for child in children]
    assert [apply_child(api, child) for child in children] == first


@settings(
    max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate]
)
@given(body=specs())
def test_every_valid_spec_is_accepted_and_so_are_its_children(api: ApiServer, body: dict[str, Any]) -> None:
    stored = create(api, "random", body)
    assert InferenceServerSpec.parse(stored["spec"]) == InferenceServerSpec.parse(body)
    stored["metadata"] |= {"uid": "0001", "generation": 1}
    shaped = [child for child in children_of(stored) if child["kind"] in SHAPED_BY_THE_SPEC]
    for child in shaped:
        path = f"{KIND_PATHS[child['kind']]}/{child['metadata']['name']}"
        api.call("PATCH", f"{path}?fieldManager=t&force=true&fieldValidation=Strict&dryRun=All", child, content=APPLY)
