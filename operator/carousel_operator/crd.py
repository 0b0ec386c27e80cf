"""The CustomResourceDefinition of InferenceServer, made from the models and the table of rules. Pure."""

import hashlib
import json
from typing import Any, Final

from carousel_operator import names, rules
from carousel_operator.resource import InferenceServerSpec
from carousel_operator.schema import object_schema
from carousel_operator.status_fields import Status

Object = dict[str, Any]

READY = '.status.conditions[?(@.type=="Ready")]'
# name, type, JSONPath, priority (1: only with -o wide), description
COLUMNS: Final[tuple[tuple[str, str, str, int, str], ...]] = (
    ("Ready", "string", f"{READY}.status", 0, "All wanted pods serve the latest spec."),
    ("Reason", "string", f"{READY}.reason", 0, "Why it is or is not ready."),
    ("Model", "string", ".spec.model.servedName", 0, "The name that clients use."),
    ("Replicas", "integer", ".status.replicas", 0, "Pods that exist."),
    ("Sessions", "integer", ".status.sessions.active", 0, "Sessions in memory."),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Age of the object."),
    ("Draining", "integer", ".status.drainingReplicas", 1, "Pods that wait for their sessions."),
    ("Revision", "string", ".status.revision.current", 1, "Revision of the pods that serve."),
    ("URL", "string", ".status.url", 1, "Base URL inside the cluster."),
)


def open_api_schema() -> Object:
    """The schema of version v1alpha1."""
    spec = object_schema(InferenceServerSpec)
    spec["x-kubernetes-validations"] = [_validation(rule) for rule in rules.SPEC_RULES]
    return {
        "type": "object",
        "description": "A chat model with in-memory sessions, on pods with one GPU each.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": object_schema(Status),
        },
        "x-kubernetes-validations": [_validation(rules.NAME_RULE)],
    }


def schema_digest() -> str:
    """Digest of the schema that this operator was built with; the CRD carries the same as an annotation."""
    return hashlib.sha256(json.dumps(open_api_schema(), sort_keys=True).encode()).hexdigest()[:16]


def custom_resource_definition() -> Object:
    """The whole object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.PLURAL}.{names.GROUP}",
            "annotations": {names.ANNOTATION_SCHEMA: schema_digest()},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": [names.CATEGORY],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": open_api_schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": text}
                        for name, kind, path, priority, text in COLUMNS
                    ],
                }
            ],
        },
    }


def _validation(rule: rules.Rule) -> Object:
    found = {"rule": rule.cel, "message": rule.message}
    return {**found, "fieldPath": rule.field} if rule.field else found
