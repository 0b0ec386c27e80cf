"""The pod template: rights, probes, resources, devices, the model's files, and how a pod ends."""

from typing import Any

import pytest
from carousel_operator import names
from carousel_operator.samples import SAMPLES

from tests.operator.rendered import Object, arguments, container, mounts, pod_spec, volume
from tests.operator.specs import CLAIM, DIGEST, HUB, IMAGE, at, server


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


@pytest.mark.parametrize(
    ("change", "device"),
    [
        ({}, None),
        ({"gpu": {"none": True}}, "cpu"),
        (at("model.preset", "qwen3.8-flash-next-fp8"), "cuda"),
        ({**at("model.preset", None), "resources": {"hostMemory": "8Gi"}}, "cuda"),
    ],
    ids=["tiny", "no GPU", "preset", "any checkpoint"],
)
def test_a_pod_with_a_gpu_never_serves_on_the_cpu_unnoticed(change: Object, device: str | None) -> None:
    source = {} if device in (None, "cpu") else CLAIM
    assert arguments(source, change).get("--device") == device


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


def test_no_setting_comes_by_a_config_map_in_the_environment() -> None:
    limits = [{"configMapRef": {"name": "limits"}}]
    made = container(at("pod.envFrom", limits), at("engine.extraArgs", ["--threads", "2"]))
    assert made["envFrom"] == limits
    assert made["args"][-3:] == ["--threads", "2", "--no-environment"]
    own = {"CAROUSEL_POD_NAME", "CAROUSEL_NAMESPACE", "CAROUSEL_HEADLESS_SERVICE"}  # written out, they win over envFrom
    assert own <= {variable["name"] for variable in made["env"]}


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
