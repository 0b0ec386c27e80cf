"""Specs for tests: a smallest valid one, changes over it, and for each rule what it accepts and what it refuses."""

import copy
from dataclasses import dataclass
from typing import Any

from carousel_operator.memory import plan_for
from carousel_operator.resource import InferenceServer, InferenceServerSpec

Object = dict[str, Any]
SMALLEST: Object = {"model": {"source": {"embedded": {}}}, "image": {"reference": "localhost/carousel/server:dev"}}
DIGEST = "sha256:" + "0123456789abcdef" * 4
HUB: Object = {"model": {"source": {"embedded": None, "hf": {"repo": "a/b", "revision": "main"}}, "preset": "tiny"}}
CLAIM: Object = {"model": {"source": {"embedded": None, "pvc": {"claimName": "m"}}, "preset": "tiny"}}
IMAGE: Object = {
    "model": {"source": {"embedded": None, "oci": {"reference": f"registry.example/m@{DIGEST}"}}, "preset": "tiny"}
}


def spec(*changes: Object, **more: Any) -> Object:
    """The smallest spec with changes merged into it in order; None removes a field."""
    found = copy.deepcopy(SMALLEST)
    for change in (*changes, more):
        _merge(found, copy.deepcopy(change))
    return found


def parsed(*changes: Object, **more: Any) -> InferenceServerSpec:
    """`spec`, parsed."""
    return InferenceServerSpec.parse(spec(*changes, **more))


def server(*changes: Object, name: str = "chat", **more: Any) -> InferenceServer:
    """A whole InferenceServer with that spec."""
    return InferenceServer.parse(resource(name, *changes, **more))


def resource(name: str, *changes: Object, **more: Any) -> Object:
    """The object as the API server takes it."""
    return {
        "apiVersion": "carousel.dev/v1alpha1",
        "kind": "InferenceServer",
        "metadata": {"name": name, "namespace": "default", "uid": "0001", "generation": 1},
        "spec": spec(*changes, **more),
    }


def planned(found: InferenceServer) -> Any:
    """Its memory plan."""
    return plan_for(found.spec)


def _merge(into: Object, change: Object) -> None:
    for key, value in change.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


@dataclass(frozen=True)
class RuleCase:
    """Changes to the smallest spec that a rule accepts, and that it refuses."""

    rule: str
    accepted: Object
    refused: Object


RULE_CASES = (
    RuleCase("one-model-source", HUB, {"model": {"source": {"hf": {"repo": "a/b", "revision": "main"}}}}),
    RuleCase("one-model-source", CLAIM, {"model": {"source": {"embedded": None}}}),
    RuleCase(
        "oci-digest",
        IMAGE,
        {"model": {"source": {"embedded": None, "oci": {"reference": "registry.example/m:1"}}, "preset": "tiny"}},
    ),
    RuleCase(
        "pvc-path",
        {
            **CLAIM,
            "model": {"source": {"embedded": None, "pvc": {"claimName": "m", "path": "a/b..c"}}, "preset": "tiny"},
        },
        {"model": {"source": {"embedded": None, "pvc": {"claimName": "m", "path": "a/../../b"}}, "preset": "tiny"}},
    ),
    RuleCase(
        "hf-revision",
        {"model": {"source": {"embedded": None, "hf": {"repo": "a/b", "revision": "refs/pr/1"}}, "preset": "tiny"}},
        {"model": {"source": {"embedded": None, "hf": {"repo": "a/b", "revision": "../x"}}, "preset": "tiny"}},
    ),
    RuleCase("one-cache", {"cache": {"ephemeral": {}}}, {"cache": {}}),
    RuleCase(
        "one-cache",
        {"cache": {"perReplica": {"size": "1Gi"}}},
        {"cache": {"ephemeral": {}, "perReplica": {"size": "1Gi"}}},
    ),
    RuleCase(
        "shared-claim-read-only",
        {"replicas": 2, "cache": {"claim": {"claimName": "c", "readOnly": True}}},
        {"replicas": 2, "cache": {"claim": {"claimName": "c"}}},
    ),
    RuleCase(
        "shared-claim-read-only",
        {"replicas": 1, "cache": {"claim": {"claimName": "c"}}},
        {"replicas": 3, "cache": {"claim": {"claimName": "c", "readOnly": False}}},
    ),
    RuleCase(
        "memory-known",
        {"model": {**CLAIM["model"], "preset": None}, "resources": {"hostMemory": "8Gi"}},
        {"model": {**CLAIM["model"], "preset": None}},
    ),
    RuleCase("embedded-is-tiny", {"model": {"preset": "tiny"}}, {"model": {"preset": "qwen3.8-flash-next-fp8"}}),
    RuleCase(
        "one-gpu",
        {"gpu": {"claim": {"deviceClassName": "gpu.example.com"}}},
        {"gpu": {"none": True, "resourceName": "nvidia.com/gpu"}},
    ),
    RuleCase("request-timeout", {"drain": {"requestTimeout": "60m"}}, {"drain": {"requestTimeout": "1h1ms"}}),
    RuleCase("own-labels", {"pod": {"labels": {"team": "a"}}}, {"pod": {"labels": {"carousel.dev/revision": "x"}}}),
    RuleCase(
        "own-labels",
        {"pod": {"labels": {"app.kubernetes.io/version": "1"}}},
        {"pod": {"labels": {"app.kubernetes.io/name": "x"}}},
    ),
    RuleCase(
        "own-annotations",
        {"pod": {"annotations": {"example.com/a": "b"}}},
        {"pod": {"annotations": {"carousel.dev/drain": "{}"}}},
    ),
    RuleCase(
        "own-variables",
        {"pod": {"env": [{"name": "HF_ENDPOINT", "value": "x"}]}},
        {"pod": {"env": [{"name": "A", "value": "x"}, {"name": "CAROUSEL_LIMITS_SESSIONS_COUNT", "value": "1"}]}},
    ),
    RuleCase(
        "own-flags",
        {"engine": {"extraArgs": ["--threads", "4"]}},
        {"engine": {"extraArgs": ["--limits-sessions-count=1"]}},
    ),
)


def _claim(*selectors: str) -> Object:
    """A device of a class that all of the selectors choose."""
    return {"deviceClassName": "gpu.example.com", "selectors": list(selectors)}


# A field, a value at its bound, one beyond it.
BOUND_CASES: tuple[tuple[str, object, object], ...] = (
    ("limits.activeRequests", 1, 0),
    ("limits.sessions.count", 100_000, 100_001),
    ("limits.sessions.idle", "1ms", "0s"),
    ("limits.sessions.idle", "1h30m", "soon"),
    ("limits.sessions.bytes", "1.5Gi", "1 GB"),
    ("limits.requestBytes", 1024, 1023),
    ("limits.requestBytes", "1Ki", "1k"),
    ("limits.socketTimeout", "1s", "-1s"),
    ("engine.prefillChunk", 128, 100),
    ("engine.drafts", 3, 4),
    ("engine.expertPoolBytes", "auto", "all"),
    ("engine.weights", "fp8", "int4"),
    ("resources.hostMemory", "3Gi", "63Mi"),
    ("resources.cpu", "1.5", "0"),
    ("resources.cpu", 2, "2 cores"),
    ("resources.sharedMemory", "1Mi", 0),
    ("drain.policy", "Immediate", "Now"),
    ("startup.timeout", "1s", "0m"),
    ("startup.timeout", "24h", "24h1s"),
    ("drain.sessionTimeout", "168h", "10081m"),
    ("drain.idleGrace", "0s", "1000h"),
    ("replicas", 0, -1),
    ("gpu.none", True, False),
    ("gpu.claim", {"deviceClassName": "gpu.example.com"}, {"selectors": ["true"]}),
    ("gpu.claim.deviceClassName", "gpu.example.com", "GPU!"),
    ("gpu.claim", _claim("true"), _claim("")),
    ("gpu.claim", _claim("a" * 2048), _claim("a" * 2049)),
    ("gpu.claim", _claim(*["true"] * 8), _claim(*["true"] * 9)),
    ("gpu.resourceName", "nvidia.com/mig-1g.10gb", "gpu"),
    ("model.servedName", "a/b:c", ""),
    ("model.preset", "tiny", "qwen"),
    ("restart", {"id": "1"}, {"reason": "no id"}),
    ("service.port", 65535, 0),
    ("pod.securityContext.runAsUser", 1, 0),
    ("pod.env", [{"name": "A", "value": ""}], [{"name": "A B", "value": ""}]),
    ("pod.tolerations", [{"operator": "Exists"}], [{"operator": "Any"}]),
    ("auth.apiKeysSecretRef", {"name": "a"}, {"name": "A!"}),
    ("image.reference", "x", ""),
    ("image.pullSecrets", ["a"], ["A!"]),
)


def at(path: str, value: object) -> Object:
    """A change of one field, by its dotted path below spec."""
    for part in reversed(path.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value
