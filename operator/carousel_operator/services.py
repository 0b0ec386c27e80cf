"""The Services of an InferenceServer, and who may disturb or reach its pods. Pure builders of whole objects' bodies."""

from typing import Any

from carousel_operator import names
from carousel_operator.resource import InferenceServer

Object = dict[str, Any]


def client_service(server: InferenceServer) -> Object:
    """What clients connect to: ready pods only."""
    options = server.spec.service
    return {
        "metadata": {"annotations": dict(options.annotations)} if options.annotations else {},
        "spec": {
            "type": options.type,
            "selector": names.selector(server.name),
            "ports": [{"name": "http", "port": options.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def headless_service(server: InferenceServer) -> Object:
    """An address for each pod, ready or not: the owner of a session stays reachable while it drains."""
    return {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(server.name),
            "ports": [{"name": "http", "port": names.CLIENT_PORT, "targetPort": "http", "protocol": "TCP"}],
        }
    }


def disruption_budget(server: InferenceServer) -> Object:
    """One pod at a time may be evicted, an unhealthy one always."""
    return {
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(server.name)},
        }
    }


def network_policy(server: InferenceServer, operator_namespace: str | None) -> Object:
    """Port 8000 for the pods themselves and for `from`, port 8001 for the operator."""
    own = {"podSelector": {"matchLabels": names.selector(server.name)}}
    clients = [
        peer.model_dump(by_alias=True, mode="json", exclude_defaults=True) for peer in server.spec.network_policy.from_
    ]
    namespace: Object = {"kubernetes.io/metadata.name": operator_namespace} if operator_namespace else {}
    operator = {
        "namespaceSelector": {"matchLabels": namespace} if namespace else {},
        "podSelector": {"matchLabels": {names.LABEL_NAME: names.OPERATOR_COMPONENT}},
    }
    return {
        "spec": {
            "podSelector": {"matchLabels": names.selector(server.name)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [own, *clients], "ports": [{"port": names.CLIENT_PORT, "protocol": "TCP"}]},
                {"from": [operator], "ports": [{"port": names.ADMIN_PORT, "protocol": "TCP"}]},
            ],
        }
    }


def pod_monitor(server: InferenceServer) -> Object:
    """Prometheus scrapes each pod's client port."""
    return {
        "spec": {
            "selector": {"matchLabels": names.selector(server.name)},
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics"}],
        }
    }


def claim_template(server: InferenceServer) -> Object:
    """The claim for one device a pod; immutable, hence named by its content."""
    claim = server.spec.gpu.claim
    if claim is None:
        raise ValueError("spec.gpu.claim is not set")
    exactly: Object = {"deviceClassName": claim.device_class_name}
    if claim.selectors:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in claim.selectors]
    return {"spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}}
