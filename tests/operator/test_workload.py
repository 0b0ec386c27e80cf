"""The children of an InferenceServer: what each field does to the pods and to the objects around them."""

import json
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from carousel_operator import config_map, memory, names, pod, workload
from carousel_operator.samples import SAMPLES, Sample
from carousel_server.__main__ import parser
from carousel_server.admin_state import LostBoot, Peer, PeersUpdate
from carousel_server.config import load_config

from tests.operator.specs import CLAIM, DIGEST, HUB, IMAGE, at, planned, server, spec

Object = dict[str, Any]
PEERS = PeersUpdate(
    generation=7,
    peers=[Peer(ordinal=0, address="chat-0.chat-pods.default.svc:8000", boot_id="b1", accepting=True)],
    lost=[LostBoot(ordinal=0, boot_id="b0", cause="rollout", at="2026-01-01T00:00:00Z")],
)


def children(*changes: Object, replicas: int | None = 1, **options: Any) -> dict[str, Object]:
    """Children by kind and name, of the smallest spec with changes."""
    found = server(*changes)
    given: dict[str, Any] = {"peers": PEERS, "limits_generation": 3, **options}
    made = workload.children(found, replicas=replicas, plan=planned(found), **given)
    return {f"{child['kind']}/{child['metadata']['name']}": child for child in made}


def pod_spec(*changes: Object) -> Object:
    """The pod template's spec."""
    found: Object = children(*changes)["StatefulSet/chat"]["spec"]["template"]["spec"]
    return found


def container(*changes: Object) -> Object:
    """The server's container."""
    found: Object = pod_spec(*changes)["containers"][0]
    return found


def mounts(of: Object) -> dict[str, Object]:
    return {mount["mountPath"]: mount for mount in of["volumeMounts"]}


def volume(of: Object, name: str) -> Object:
    found: Object = next(volume for volume in of["volumes"] if volume["name"] == name)
    return found


def arguments(*changes: Object) -> dict[str, str]:
    args = container(*changes)["args"]
    return dict(zip(args[::2], args[1::2], strict=False))


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


def test_the_pod_has_no_right_that_it_does_not_need() -> None:
    made = pod_spec()
    assert made["automountServiceAccountToken"] is False
    assert made["enableServiceLinks"] is False
    assert made["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert made["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & set(made)


def test_ids_can_be_changed_but_root_and_seccomp_stay_as_they_are() -> None:
    made = pod_spec(at("pod.securityContext", {"runAsUser": 1000, "supplementalGroups": [44]}))["securityContext"]
    assert (made["runAsUser"], made["supplementalGroups"]) == (1000, [44])
    assert made["runAsNonRoot"] is True
    assert made["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize(("timeout", "tries"), [("20m", 600), ("1s", 1), ("3s", 2), ("2h", 3600)])
def test_a_start_gets_its_budget_and_no_fixed_delay(timeout: str, tries: int) -> None:
    made = container(at("startup.timeout", timeout))
    assert made["startupProbe"]["failureThreshold"] == tries
    assert made["startupProbe"]["periodSeconds"] == 2
    assert not [p for p in ("startupProbe", "livenessProbe", "readinessProbe") if "initialDelaySeconds" in made[p]]


def test_only_a_dead_engine_fails_liveness() -> None:
    made = container()
    paths = {name: made[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/readyz", "liveness": "/livez", "readiness": "/readyz"}
    assert {made[f"{name}Probe"]["httpGet"]["port"] for name in paths} == {"admin"}


@pytest.mark.parametrize(
    ("timeout", "grace", "longest"),
    [("2m", 140, "125s"), ("0s", 20, "5s"), ("1h", 3620, "3605s"), ("500ms", 21, "5500ms")],
)
def test_sigterm_arithmetic_leaves_final_frames_their_time(timeout: str, grace: int, longest: str) -> None:
    made = pod_spec(at("drain.requestTimeout", timeout))
    assert made["terminationGracePeriodSeconds"] == grace
    prestop = made["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert prestop == ["carousel-server", "drain", "--wait", "--timeout", longest]
    after_prestop = grace - server(at("drain.requestTimeout", timeout)).spec.drain.request_timeout - 5
    assert after_prestop >= 15


def test_memory_is_requested_and_limited_alike_and_cpu_only_requested() -> None:
    made = container({"resources": {"hostMemory": "4Gi", "cpu": "1500m", "ephemeralStorage": "2Gi"}})["resources"]
    assert made["requests"] == {
        "cpu": "1500m",
        "memory": "4Gi",
        "ephemeral-storage": "2Gi",
        "nvidia.com/gpu": "1",
    }
    assert made["limits"] == {"memory": "4Gi", "ephemeral-storage": "2Gi", "nvidia.com/gpu": "1"}


def test_cpu_and_memory_resize_without_a_restart_of_the_container() -> None:
    assert container()["resizePolicy"] == [
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "NotRequired"},
    ]


def test_shared_memory_and_scratch_are_bounded_volumes() -> None:
    made = pod_spec({"resources": {"sharedMemory": "1Gi", "ephemeralStorage": "3Gi"}})
    assert volume(made, "shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert volume(made, "tmp")["emptyDir"] == {"sizeLimit": "3Gi"}
    assert {"/dev/shm", "/tmp"} <= set(mounts(made["containers"][0]))


@pytest.mark.parametrize(
    ("gpu", "resources", "claims"),
    [
        ({}, {"nvidia.com/gpu": "1"}, None),
        ({"resourceName": "nvidia.com/mig-1g.10gb"}, {"nvidia.com/mig-1g.10gb": "1"}, None),
        ({"none": True}, {}, None),
        ({"claim": {"deviceClassName": "gpu.example.com"}}, {}, [{"name": "gpu"}]),
    ],
)
def test_a_pod_gets_one_gpu_in_the_way_it_asks(gpu: Object, resources: Object, claims: object) -> None:
    made = container({"gpu": gpu})["resources"]
    devices = {key: value for key, value in made["limits"].items() if "/" in key}
    assert devices == resources
    assert made.get("claims") == claims


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


def test_secrets_are_files_and_never_variables() -> None:
    made = pod_spec(at("auth.apiKeysSecretRef.name", "keys"))
    found = mounts(made["containers"][0])
    assert volume(made, "admin-token")["secret"] == {"secretName": "chat-admin"}
    assert volume(made, "api-keys")["secret"] == {"secretName": "keys"}
    assert found["/var/run/carousel/admin"]["readOnly"]
    assert found["/var/run/carousel/api-keys"]["readOnly"]
    assert not [e for e in made["containers"][0]["env"] if "secretKeyRef" in e.get("valueFrom", {})]


def test_the_server_knows_who_and_where_it_is() -> None:
    env = {e["name"]: e.get("value") or e["valueFrom"]["fieldRef"]["fieldPath"] for e in container()["env"]}
    assert env["CAROUSEL_POD_NAME"] == "metadata.name"
    assert env["CAROUSEL_NAMESPACE"] == "default"
    assert env["CAROUSEL_HEADLESS_SERVICE"] == "chat-pods"


def test_a_users_variable_replaces_a_default_one() -> None:
    env = container(at("pod.env", [{"name": "TRITON_CACHE_DIR", "value": "/x"}, {"name": "E", "value": ""}]))["env"]
    assert [e["value"] for e in env if e["name"] == "TRITON_CACHE_DIR"] == ["/x"]
    assert len({e["name"] for e in env}) == len(env)


# source, --model, where its volume comes from, whether a container fetches it
SOURCES: tuple[tuple[Object, str, Object | None, bool], ...] = (
    ({}, "embedded", None, False),
    (CLAIM, "/models", {"persistentVolumeClaim": {"claimName": "m", "readOnly": True}}, False),
    (IMAGE, "/models", {"image": {"reference": f"registry.example/m@{DIGEST}", "pullPolicy": "IfNotPresent"}}, False),
    (HUB, "/models/hub/a--b/main", {"emptyDir": {}}, True),
)


@pytest.mark.parametrize(("source", "model", "origin", "fetched"), SOURCES, ids=["embedded", "pvc", "oci", "hf"])
def test_a_model_comes_from_its_source_read_only(
    source: Object, model: str, origin: Object | None, fetched: bool
) -> None:
    made = pod_spec(source)
    assert arguments(source)["--model"] == model
    assert ("initContainers" in made) == fetched
    mount = mounts(made["containers"][0]).get("/models")
    assert (mount is not None) == (origin is not None)
    if mount:
        assert mount["readOnly"]
        assert {k: v for k, v in volume(made, mount["name"]).items() if k != "name"} == origin


def test_a_folder_of_a_claim_is_found() -> None:
    assert arguments(CLAIM, at("model.source.pvc.path", "a/b"))["--model"] == "/models/a/b"


def test_the_hub_is_fetched_by_the_same_image_with_the_same_rights_and_no_gpu() -> None:
    token = at("model.source.hf.tokenSecretRef", {"name": "t", "key": "k"})
    made = pod_spec(HUB, token, at("pod.env", [{"name": "HTTPS_PROXY", "value": "x"}]))
    fetch, main = made["initContainers"][0], made["containers"][0]
    assert fetch["image"] == main["image"]
    assert fetch["securityContext"] == main["securityContext"]
    assert "HTTPS_PROXY" in {e["name"] for e in fetch["env"]}
    assert not [key for key in fetch["resources"]["limits"] if "/" in key]
    assert fetch["command"][:2] == ["carousel-server", "fetch"]
    assert fetch["command"][-2:] == ["--token-file", "/var/run/carousel/hub-token/token"]
    assert volume(made, "hub-token")["secret"] == {"secretName": "t", "items": [{"key": "k", "path": "token"}]}
    assert "hub-token" not in {mount["name"] for mount in main["volumeMounts"]}
    assert "readOnly" not in mounts(fetch)["/models"]


@pytest.mark.parametrize(
    ("cache", "origin", "kernels"),
    [
        (None, None, "/tmp/kernels"),
        ({"ephemeral": {"sizeLimit": "5Gi"}}, {"emptyDir": {"sizeLimit": "5Gi"}}, "/cache/kernels"),
        ({"claim": {"claimName": "c"}}, {"persistentVolumeClaim": {"claimName": "c"}}, "/cache/kernels"),
        (
            {"claim": {"claimName": "c", "readOnly": True}},
            {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
            "/tmp/kernels",
        ),
    ],
)
def test_compiled_kernels_go_where_something_can_be_written(cache: Any, origin: Any, kernels: str) -> None:
    made = pod_spec({"cache": cache})
    env = {e["name"]: e.get("value") for e in made["containers"][0]["env"]}
    assert env["TRITON_CACHE_DIR"] == kernels
    assert ("/cache" in mounts(made["containers"][0])) == kernels.startswith("/cache")
    if origin:
        assert {k: v for k, v in volume(made, "cache").items() if k != "name"} == origin


def test_a_read_only_cache_is_only_looked_at_by_the_fetching_container() -> None:
    made = pod_spec(HUB, at("cache.claim", {"claimName": "c", "readOnly": True}))
    assert mounts(made["initContainers"][0])["/models"]["readOnly"]


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


def test_scheduling_fields_reach_the_pod_as_they_were_written() -> None:
    wanted = next(sample for sample in SAMPLES if sample.file == "every-field.yaml").spec["pod"]
    made = pod_spec({"pod": wanted})
    for field in ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "runtimeClassName"):
        assert made[field] == wanted[field]
    assert (made["priorityClassName"], made["serviceAccountName"]) == ("chat", "chat")
    assert made["containers"][0]["envFrom"] == wanted["envFrom"]


def test_pods_spread_among_themselves_unless_told_otherwise() -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    made = pod_spec(at("pod.topologySpreadConstraints", [spread]))["topologySpreadConstraints"]
    assert made == [spread | {"labelSelector": {"matchLabels": names.selector("chat")}}]


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


OPTIONAL_BLOCKS: tuple[Callable[[], Object], ...] = tuple(
    (lambda key=key, value=value: {key: value})
    for key, value in SAMPLES[-1].spec.items()
    if key not in ("model", "image", "replicas", "suspend")
)


@pytest.mark.parametrize("block", OPTIONAL_BLOCKS, ids=lambda block: next(iter(block())))
def test_each_optional_block_may_be_there_alone(block: Callable[[], Object]) -> None:
    found = server(spec(block()))
    assert workload.children(found, replicas=1, plan=memory.plan_for(found.spec), peers=PEERS, limits_generation=1)
