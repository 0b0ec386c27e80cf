"""Every child of an InferenceServer as the object that server-side apply takes. Pure; knows no client.

All of them carry the labels of names.py and a controlling owner reference, and none has a finalizer.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from carousel_server.admin_state import PeersUpdate
from carousel_server.memory_plan import MemoryPlan

from carousel_operator import config_map, names, pod, services
from carousel_operator.model_files import model_files
from carousel_operator.resource import InferenceServer, InferenceServerSpec, InvalidSpec

Object = dict[str, Any]

# Children that a spec may stop asking for: (apiVersion, kind). Found by label, deleted when not wanted.
OPTIONAL_KINDS: Final[tuple[tuple[str, str], ...]] = (
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("monitoring.coreos.com/v1", "PodMonitor"),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"),
)


def children(
    server: InferenceServer,
    *,
    replicas: int | None,
    plan: MemoryPlan | None,
    peers: PeersUpdate,
    limits_generation: int,
    secrets_digest: str = "",
    pod_monitors: bool = False,
    operator_namespace: str | None = None,
) -> list[Object]:
    """The children in the order of their application; the ConfigMap comes before what reads it.

    `replicas` None leaves the StatefulSet's replicas to whoever owns them. `pod_monitors` says that the cluster has
    that kind. The admin token is `admin_secret`, made once and never applied again.
    """
    spec = server.spec
    found = [
        _child(server, "v1", "ConfigMap", names.config_map(server.name))
        | {"data": config_map.data(spec.limits, limits_generation, peers)},
        _child(server, "v1", "Service", server.name, services.client_service(server)),
        _child(server, "v1", "Service", names.headless_service(server.name), services.headless_service(server)),
    ]
    if spec.gpu.claim:
        name = names.claim_template(server.name, spec.gpu.claim)
        body = services.claim_template(server)
        found.append(_child(server, "resource.k8s.io/v1", "ResourceClaimTemplate", name, body))
    found.append(stateful_set(server, replicas=replicas, plan=plan, secrets_digest=secrets_digest))
    if _wanted(spec, replicas) > 0:
        body = services.disruption_budget(server)
        found.append(_child(server, "policy/v1", "PodDisruptionBudget", server.name, body))
    if spec.network_policy.enabled:
        body = services.network_policy(server, operator_namespace)
        found.append(_child(server, "networking.k8s.io/v1", "NetworkPolicy", server.name, body))
    if spec.monitoring.pod_monitor and pod_monitors:
        body = services.pod_monitor(server)
        found.append(_child(server, "monitoring.coreos.com/v1", "PodMonitor", server.name, body))
    return found


def stateful_set(
    server: InferenceServer, *, replicas: int | None, plan: MemoryPlan | None, secrets_digest: str = ""
) -> Object:
    """OnDelete and Parallel: the operator decides when a pod goes, the API server when its successor comes."""
    spec: Object = {
        "serviceName": names.headless_service(server.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": names.selector(server.name)},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "template": pod.template(server, plan, secrets_digest),
    }
    if replicas is not None:
        spec["replicas"] = replicas
    claims = model_files(server.spec).claim_templates
    if claims:
        spec["volumeClaimTemplates"] = [
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
            | claim
            | {"metadata": {**claim["metadata"], "labels": names.selector(server.name)}}
            for claim in claims
        ]
    annotations = {names.ANNOTATION_SPEC: json.dumps(server.spec.dump(), sort_keys=True, separators=(",", ":"))}
    body = {"metadata": {"annotations": annotations}, "spec": spec}
    return _child(server, "apps/v1", "StatefulSet", server.name, body)


def applied_spec(stateful_set: Mapping[str, Any] | None) -> InferenceServerSpec | None:
    """The spec that the StatefulSet was made from; None when there is none, or none that this version can read."""
    annotations = ((stateful_set or {}).get("metadata") or {}).get("annotations") or {}
    try:
        return InferenceServerSpec.parse(json.loads(annotations[names.ANNOTATION_SPEC]))
    except (KeyError, ValueError, InvalidSpec):
        return None


def admin_secret(server: InferenceServer, token: str) -> Object:
    """The token of the admin port: created once, mounted as a file, never in an environment."""
    secret = _child(server, "v1", "Secret", names.admin_secret(server.name))
    return secret | {"type": "Opaque", "stringData": {"token": token}}


def owner_reference(server: InferenceServer) -> Object:
    """The InferenceServer as controlling owner: deleting it deletes the children."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": server.name,
        "uid": server.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _wanted(spec: InferenceServerSpec, replicas: int | None) -> int:
    """Pods that the StatefulSet is told to keep; while a suspended server still drains, they are more than 0."""
    if replicas is not None:
        return replicas
    return 0 if spec.suspend else spec.replicas


def _child(server: InferenceServer, api: str, kind: str, name: str, body: Object | None = None) -> Object:
    body = body or {}
    metadata = {
        "name": name,
        "namespace": server.namespace,
        "labels": names.labels(server.name),
        "ownerReferences": [owner_reference(server)],
        **body.get("metadata", {}),
    }
    rest = {key: value for key, value in body.items() if key != "metadata"}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}
