"""The pod template: one container, one GPU, no privilege. Pure.

Everything that a pod does to end well is decided here: the probes, preStop, and how long the kubelet waits.
"""

import math
from typing import Any

from carousel_server.memory_plan import MemoryPlan
from carousel_server.units import format_bytes, format_duration

from carousel_operator import drain, names
from carousel_operator.memory import container_resources, devices
from carousel_operator.model_files import ModelFiles, Object, model_files
from carousel_operator.resource import InferenceServer, InferenceServerSpec
from carousel_operator.revision import TEMPLATE_VERSION, of
from carousel_operator.spec_fields import Engine

USER = 65532
ADMIN_TOKEN_DIR = "/var/run/carousel/admin"
API_KEYS_DIR = "/var/run/carousel/api-keys"
CONFIG_DIR = "/etc/carousel"
TMP_BYTES = 2**30
STARTUP_PERIOD = 2  # seconds; a server that loads in 3 s is seen within 5
BROKEN_GRACE = 15  # seconds for a process whose engine is dead: no request of it can still end well


def drain_settings(spec: InferenceServerSpec) -> drain.DrainSettings:
    """`spec.drain` as the drain protocol takes it."""
    want = spec.drain
    return drain.DrainSettings(want.policy, want.session_timeout, want.request_timeout, want.idle_grace)


def template(server: InferenceServer, plan: MemoryPlan | None, secrets_digest: str = "") -> Object:
    """metadata and spec of a pod."""
    spec, files = server.spec, model_files(server.spec)
    annotations = {
        **spec.pod.annotations,
        "kubectl.kubernetes.io/default-container": names.CONTAINER,
        names.ANNOTATION_TEMPLATE: str(TEMPLATE_VERSION),
    }
    if spec.restart:
        annotations[names.ANNOTATION_RESTART] = spec.restart.id
    if secrets_digest:
        annotations[names.ANNOTATION_SECRETS] = secrets_digest
    labels = {**spec.pod.labels, **names.labels(server.name), names.LABEL_REVISION: of(spec)}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": _pod_spec(server, files, plan)}


def _pod_spec(server: InferenceServer, files: ModelFiles, plan: MemoryPlan | None) -> Object:
    spec = server.spec
    found: Object = {
        "terminationGracePeriodSeconds": drain_settings(spec).grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named carousel would set CAROUSEL_PORT
        "securityContext": _pod_security(spec),
        "containers": [_container(server, files, plan)],
        "volumes": _volumes(server, files),
        **_scheduling(server),
    }
    if files.fetch:
        found["initContainers"] = [_fetch_container(server, files.fetch)]
    if spec.image.pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in spec.image.pull_secrets]
    if spec.pod.service_account_name:
        found["serviceAccountName"] = spec.pod.service_account_name
    if spec.gpu.claim:
        claim = {"name": "gpu", "resourceClaimTemplateName": names.claim_template(server.name, spec.gpu.claim)}
        found["resourceClaims"] = [claim]
    return found


def _scheduling(server: InferenceServer) -> Object:
    pod = server.spec.pod
    found: Object = pod.model_dump(
        by_alias=True,
        mode="json",
        exclude_defaults=True,
        include={"node_selector", "tolerations", "affinity", "runtime_class_name", "priority_class_name"},
    )
    if pod.topology_spread_constraints:
        own = {"labelSelector": {"matchLabels": names.selector(server.name)}}
        spread = [
            c.model_dump(by_alias=True, mode="json", exclude_defaults=True) for c in pod.topology_spread_constraints
        ]
        found["topologySpreadConstraints"] = [{**own, **constraint} for constraint in spread]
    return found


def _pod_security(spec: InferenceServerSpec) -> Object:
    asked = spec.pod.security_context
    own: Object = {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return own | (asked.model_dump(by_alias=True, mode="json", exclude_defaults=True) if asked else {})


def _container_security() -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _container(server: InferenceServer, files: ModelFiles, plan: MemoryPlan | None) -> Object:
    spec = server.spec
    return {
        "name": names.CONTAINER,
        "image": spec.image.reference,
        "imagePullPolicy": spec.image.pull_policy,
        "command": ["carousel-server", "serve"],
        "args": _args(spec, files),
        **_environment(server, {"TRITON_CACHE_DIR": files.kernel_cache}),
        "ports": [
            {"name": "http", "containerPort": names.CLIENT_PORT, "protocol": "TCP"},
            {"name": "admin", "containerPort": names.ADMIN_PORT, "protocol": "TCP"},
        ],
        "resources": container_resources(spec, plan),
        "resizePolicy": [
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
            {"resourceName": "memory", "restartPolicy": "NotRequired"},
        ],
        **_probes(spec),
        "lifecycle": {"preStop": {"exec": {"command": prestop(spec)}}},
        "securityContext": _container_security(),
        "volumeMounts": _mounts(server, files),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def prestop(spec: InferenceServerSpec) -> list[str]:
    """What the kubelet runs before SIGTERM: wait for requests at least 5 s, at most requestTimeout + 5 s."""
    longest = spec.drain.request_timeout + drain.ENDPOINT_SECONDS
    return ["carousel-server", "drain", "--wait", "--timeout", format_duration(longest)]


def _probes(spec: InferenceServerSpec) -> Object:
    """Start-up: loaded within the budget, else restarted. Liveness: the engine is dead. Readiness: takes requests.

    A full queue or a drain touches readiness at most, so the kubelet never restarts a pod that holds sessions.
    """

    def get(path: str) -> Object:
        return {
            "httpGet": {"path": path, "port": "admin", "scheme": "HTTP"},
            "timeoutSeconds": 5,
            "successThreshold": 1,
        }

    tries = max(1, math.ceil(spec.startup.timeout / STARTUP_PERIOD))
    return {
        "startupProbe": {
            **get("/readyz"),
            "periodSeconds": STARTUP_PERIOD,
            "failureThreshold": tries,
            "terminationGracePeriodSeconds": BROKEN_GRACE,
        },
        "livenessProbe": {
            **get("/livez"),
            "periodSeconds": 10,
            "failureThreshold": 6,
            "terminationGracePeriodSeconds": BROKEN_GRACE,
        },
        "readinessProbe": {**get("/readyz"), "periodSeconds": 5, "failureThreshold": 2},
    }


def _args(spec: InferenceServerSpec, files: ModelFiles) -> list[str]:
    args = ["--model", files.model, "--served-name", spec.model.served_name, "--config", f"{CONFIG_DIR}/server.toml"]
    if len(possible := devices(spec)) == 1:  # never unnoticed on the CPU beside a GPU, nor on one that is not its own
        args += ["--device", possible[0]]
    defaults = Engine()
    for field in Engine.model_fields:
        value = getattr(spec.engine, field)
        if field != "extra_args" and value is not None and value != getattr(defaults, field):
            shown = spec.engine.model_dump(mode="json", include={field})[field]
            args += [f"--engine-{field.replace('_', '-')}", str(shown)]
    # pod.envFrom could bring CAROUSEL_LIMITS_..., which would beat the file that the limits change by.
    return [*args, *spec.engine.extra_args, "--no-environment"]


def _environment(server: InferenceServer, more: dict[str, str]) -> Object:
    """The operator's variables, then the user's. Names with CAROUSEL_ are refused in the user's `env` (rules.py).

    What `envFrom` brings under one of these names loses against them (Kubernetes), and a setting is not read at all.
    """
    own: list[Object] = [
        {"name": "CAROUSEL_POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
        {"name": "CAROUSEL_NAMESPACE", "value": server.namespace},
        {"name": "CAROUSEL_HEADLESS_SERVICE", "value": names.headless_service(server.name)},
    ]
    asked = [e.model_dump(by_alias=True, mode="json", exclude_defaults=True) for e in server.spec.pod.env]
    taken = {e["name"] for e in asked}
    more = {"HOME": "/tmp", "XDG_CACHE_HOME": "/tmp/cache", **more}
    own += [{"name": name, "value": value} for name, value in more.items() if name not in taken]
    found: Object = {"env": own + asked}
    if server.spec.pod.env_from:
        found["envFrom"] = [
            e.model_dump(by_alias=True, mode="json", exclude_defaults=True) for e in server.spec.pod.env_from
        ]
    return found


def _mounts(server: InferenceServer, files: ModelFiles) -> list[Object]:
    mounts: list[Object] = [
        {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True},
        {"name": "admin-token", "mountPath": ADMIN_TOKEN_DIR, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if server.spec.auth.api_keys_secret_ref:
        mounts.append({"name": "api-keys", "mountPath": API_KEYS_DIR, "readOnly": True})
    return mounts + files.mounts


def _volumes(server: InferenceServer, files: ModelFiles) -> list[Object]:
    spec = server.spec
    volumes: list[Object] = [
        {"name": "config", "configMap": {"name": names.config_map(server.name)}},
        {"name": "admin-token", "secret": {"secretName": names.admin_secret(server.name)}},
        {"name": "tmp", "emptyDir": {"sizeLimit": format_bytes(spec.resources.ephemeral_storage or TMP_BYTES)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": format_bytes(spec.resources.shared_memory)}},
    ]
    if spec.auth.api_keys_secret_ref:
        volumes.append({"name": "api-keys", "secret": {"secretName": spec.auth.api_keys_secret_ref.name}})
    return volumes + files.volumes


def _fetch_container(server: InferenceServer, fetch: dict[str, Any]) -> Object:
    """Downloads the model with the same image, environment and rights as the server, without the GPU."""
    admin: list[Object] = [
        {"name": "admin-token", "mountPath": ADMIN_TOKEN_DIR, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    return {
        "name": names.FETCH_CONTAINER,
        "image": server.spec.image.reference,
        "imagePullPolicy": server.spec.image.pull_policy,
        "command": fetch["command"],
        **_environment(server, {}),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": _container_security(),
        "volumeMounts": admin + fetch["volumeMounts"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
