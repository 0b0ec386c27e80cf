"""The children of an InferenceServer: what each field does to the objects around its pods."""

import json
import tomllib

import pytest
from carousel_operator import config_map, memory, names, pod, workload
from carousel_operator.samples import SAMPLES, Sample
from carousel_server.__main__ import parser
from carousel_server.admin_state import PeersUpdate
from carousel_server.config import load_config

from tests.operator.child_rows import ROWS, Row
from tests.operator.rendered import PEERS, Object, children
from tests.operator.specs import HUB, at, planned, server, spec


@pytest.mark.parametrize("row", ROWS, ids=[row.sentence.replace(" ", "_") for row in ROWS])
def test_the_children_of_this_spec(row: Row) -> None:
    assert row.part(children(*row.spec)) == row.expected


def test_the_usual_children_are_these_in_an_order_that_can_be_applied() -> None:
    assert list(children()) == [
        "ConfigMap/chat-config",
        "Service/chat",
        "Service/chat-pods",
        "StatefulSet/chat",
        "PodDisruptionBudget/chat",
    ]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.file)
def test_every_child_is_owned_and_labelled_and_has_no_finalizer(sample: Sample) -> None:
    found = server({"model": {"source": {"embedded": None}}}, sample.spec, name=sample.name)
    made = workload.children(
        found, replicas=1, plan=planned(found), peers=PEERS, limits_generation=1, pod_monitors=True
    )
    for child in [*made, workload.admin_secret(found, "token")]:
        meta = child["metadata"]
        assert meta["namespace"] == "default"
        assert meta["ownerReferences"] == [
            {
                "apiVersion": "carousel.dev/v1alpha1",
                "kind": "InferenceServer",
                "name": sample.name,
                "uid": "0001",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
        assert meta["labels"] == names.labels(sample.name)
        assert "finalizers" not in meta


def test_the_stateful_set_leaves_the_when_to_the_operator() -> None:
    made = children()["StatefulSet/chat"]["spec"]
    assert made["updateStrategy"] == {"type": "OnDelete"}
    assert made["podManagementPolicy"] == "Parallel"
    assert made["serviceName"] == "chat-pods"
    assert made["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_replicas_are_left_out_while_somebody_else_owns_them() -> None:
    assert children(replicas=2)["StatefulSet/chat"]["spec"]["replicas"] == 2
    assert "replicas" not in children(replicas=None)["StatefulSet/chat"]["spec"]


@pytest.mark.parametrize(
    ("replicas", "change", "there"),
    [
        (1, {}, True),
        (0, {}, False),
        (None, {}, True),
        (None, {"replicas": 0}, False),
        (None, {"suspend": True}, False),
        (2, {"suspend": True}, True),
    ],
)
def test_a_disruption_budget_is_there_while_there_are_pods(replicas: int | None, change: Object, there: bool) -> None:
    made = children(change, replicas=replicas)
    assert ("PodDisruptionBudget/chat" in made) == there
    if there:
        budget = made["PodDisruptionBudget/chat"]["spec"]
        assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
        assert "minAvailable" not in budget


def test_clients_reach_ready_pods_and_peers_reach_all_of_them() -> None:
    made = children(at("service", {"port": 80, "type": "NodePort", "annotations": {"a": "b"}}))
    client, headless = made["Service/chat"], made["Service/chat-pods"]["spec"]
    assert client["spec"]["ports"][0] | {"name": "http"} == {
        "name": "http",
        "port": 80,
        "targetPort": "http",
        "protocol": "TCP",
    }
    assert (client["spec"]["type"], client["metadata"]["annotations"]) == ("NodePort", {"a": "b"})
    assert "publishNotReadyAddresses" not in client["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert [port["targetPort"] for port in headless["ports"]] == ["http"]


def test_the_config_map_reads_back_as_the_limits_and_the_ledger() -> None:
    limits = {"sessions": {"count": 5, "bytes": "64Mi", "idle": "1m"}, "socketTimeout": "1500ms", "queuedRequests": 0}
    made = children({"limits": limits})["ConfigMap/chat-config"]
    config = load_config(toml=made["data"]["server.toml"], environment={})
    assert config.generation == 3
    assert config.limits == server({"limits": limits}).spec.limits
    assert config_map.read_generation(made) == 3
    assert config_map.read_peers(made) == PEERS
    assert config_map.read_peers({"data": {"peers.json": "{"}}) == PeersUpdate(generation=0)
    assert config_map.read_generation(None) == 0


def test_engine_settings_are_flags_of_the_pods_own_revision_and_not_in_the_config_map() -> None:
    engine = {"contextTokens": 4096, "expertPoolBytes": "1536Mi", "drafts": 0, "weights": "fp8", "headerTimeout": "20s"}
    made = children({"engine": engine})
    assert list(tomllib.loads(made["ConfigMap/chat-config"]["data"]["server.toml"])) == ["generation", "limits"]
    args = made["StatefulSet/chat"]["spec"]["template"]["spec"]["containers"][0]["args"]
    options = parser().parse_args(args)
    assert load_config(flags=vars(options)).engine.model_dump() == server({"engine": engine}).spec.engine.model_dump(
        exclude={"extra_args"}
    )


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.file)
def test_the_server_understands_every_flag_it_is_given(sample: Sample) -> None:
    found = server({"model": {"source": {"embedded": None}}}, sample.spec)
    template = pod.template(found, planned(found))["spec"]["containers"][0]
    assert template["command"] == ["carousel-server", "serve"]
    options = parser().parse_args(template["args"])
    assert options.served_name == found.spec.model.served_name
    assert str(options.config) == "/etc/carousel/server.toml"


def test_a_device_claim_is_a_template_named_by_its_content() -> None:
    one = {"claim": {"deviceClassName": "gpu.example.com", "selectors": ["device.driver == 'x'"]}}
    made = children({"gpu": one})
    template = next(child for key, child in made.items() if key.startswith("ResourceClaimTemplate/"))
    assert template["spec"]["spec"]["devices"]["requests"] == [
        {
            "name": "gpu",
            "exactly": {
                "deviceClassName": "gpu.example.com",
                "selectors": [{"cel": {"expression": "device.driver == 'x'"}}],
            },
        }
    ]
    spec = made["StatefulSet/chat"]["spec"]["template"]["spec"]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": template["metadata"]["name"]}]
    other = children({"gpu": {"claim": {"deviceClassName": "gpu.example.com"}}})
    assert template["metadata"]["name"] not in {key.split("/")[1] for key in other}


def test_a_cache_of_each_pod_is_a_claim_template_that_stays_the_same_over_revisions() -> None:
    cache = at("cache.perReplica", {"size": "200Gi", "storageClassName": "fast"})
    one = children(HUB, cache)["StatefulSet/chat"]["spec"]["volumeClaimTemplates"]
    other = children(HUB, cache, at("image.reference", "y"), at("pod.labels", {"a": "b"}))
    assert one[0]["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "200Gi"}},
        "storageClassName": "fast",
    }
    assert other["StatefulSet/chat"]["spec"]["volumeClaimTemplates"] == one


def test_pods_say_their_revision_restart_and_secrets() -> None:
    made = children(at("restart.id", "r1"), at("pod.annotations", {"a": "b"}), secrets_digest="abc")
    meta = made["StatefulSet/chat"]["spec"]["template"]["metadata"]
    assert meta["annotations"] == {
        "a": "b",
        "kubectl.kubernetes.io/default-container": "server",
        "carousel.dev/template": "1",
        "carousel.dev/restart-id": "r1",
        "carousel.dev/secrets": "abc",
    }
    assert set(meta["labels"]) == {*names.LABELS}


def test_a_stateful_set_remembers_the_spec_it_was_made_from() -> None:
    made = children(at("limits.queuedRequests", 9))["StatefulSet/chat"]
    assert workload.applied_spec(made) == server(at("limits.queuedRequests", 9)).spec
    assert workload.applied_spec(None) is None
    made["metadata"]["annotations"]["carousel.dev/spec"] = json.dumps({"from": "another version"})
    assert workload.applied_spec(made) is None


def test_a_network_policy_lets_in_the_pods_the_operator_and_who_was_named() -> None:
    clients = [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]
    made = children({"networkPolicy": {"enabled": True, "from": clients}}, operator_namespace="carousel-system")
    clients_rule, operator_rule = made["NetworkPolicy/chat"]["spec"]["ingress"]
    assert clients_rule["from"] == [{"podSelector": {"matchLabels": names.selector("chat")}}, *clients]
    assert clients_rule["ports"] == [{"port": 8000, "protocol": "TCP"}]
    assert operator_rule["ports"] == [{"port": 8001, "protocol": "TCP"}]
    assert operator_rule["from"][0]["namespaceSelector"] == {
        "matchLabels": {"kubernetes.io/metadata.name": "carousel-system"}
    }
    assert "NetworkPolicy/chat" not in children({"networkPolicy": {"from": clients}})


@pytest.mark.parametrize(
    ("asked", "kind_exists", "there"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_pod_monitor_is_made_where_it_is_asked_for_and_known(asked: bool, kind_exists: bool, there: bool) -> None:
    made = children(at("monitoring.podMonitor", asked), pod_monitors=kind_exists)
    assert ("PodMonitor/chat" in made) == there


def test_the_admin_token_is_a_secret_of_its_own() -> None:
    made = workload.admin_secret(server(), "t0ken")
    assert (made["metadata"]["name"], made["stringData"]) == ("chat-admin", {"token": "t0ken"})
    assert "t0ken" not in json.dumps(list(children().values()))


OPTIONAL_BLOCKS = [key for key in SAMPLES[-1].spec if key not in ("model", "image", "replicas", "suspend")]


@pytest.mark.parametrize("block", OPTIONAL_BLOCKS)
def test_each_optional_block_may_be_there_alone(block: str) -> None:
    found = server(spec({block: SAMPLES[-1].spec[block]}))
    assert workload.children(found, replicas=1, plan=memory.plan_for(found.spec), peers=PEERS, limits_generation=1)
