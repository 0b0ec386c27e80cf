"""What a change of each field does, and which revision it gives."""

from typing import Any

import pytest
from carousel_operator import change, revision
from carousel_operator.crd import open_api_schema
from carousel_operator.reference import walk
from carousel_operator.resource import InferenceServerSpec
from carousel_operator.revision import Reference
from hypothesis import HealthCheck, given, settings

from tests.operator.random_specs import specs
from tests.operator.specs import CLAIM, HUB, at, parsed

# Before, after, the class, the fields that differ.
ROWS: tuple[tuple[str, Any, Any, str, list[str]], ...] = (
    ("nothing changes", {}, {}, "None", []),
    ("a default is written out", {}, at("limits.activeRequests", 4), "None", []),
    ("another spelling", at("resources.hostMemory", "1Gi"), at("resources.hostMemory", "1024Mi"), "None", []),
    ("replicas", {}, at("replicas", 3), "None", ["replicas"]),
    ("suspend", {}, at("suspend", True), "None", ["suspend"]),
    ("a Service's annotation", {}, at("service.annotations", {"a": "b"}), "None", ["service.annotations"]),
    ("a Service's type", {}, at("service.type", "NodePort"), "None", ["service.type"]),
    ("a network policy", {}, at("networkPolicy.enabled", True), "None", ["networkPolicy.enabled"]),
    ("monitoring", {}, at("monitoring.podMonitor", True), "None", ["monitoring.podMonitor"]),
    (
        "the Secret of the hub's token",
        HUB,
        (HUB, at("model.source.hf.tokenSecretRef.name", "t")),
        "None",
        ["model.source.hf.tokenSecretRef.name", "model.source.hf.tokenSecretRef.key"],
    ),
    ("a limit", {}, at("limits.sessions.count", 8), "Hot", ["limits.sessions.count"]),
    ("a byte limit appears", {}, at("limits.prefixCache.bytes", "1Gi"), "Hot", ["limits.prefixCache.bytes"]),
    ("a byte limit goes", at("limits.checkpointBytes", "1Gi"), {}, "Hot", ["limits.checkpointBytes"]),
    ("a drain's patience", {}, at("drain.requestTimeout", "5m"), "Hot", ["drain.requestTimeout"]),
    ("cpu", {}, at("resources.cpu", "1500m"), "Resize", ["resources.cpu"]),
    ("host memory", {}, at("resources.hostMemory", "8Gi"), "Resize", ["resources.hostMemory"]),
    ("shared memory", {}, at("resources.sharedMemory", "1Gi"), "Restart", ["resources.sharedMemory"]),
    ("ephemeral storage", {}, at("resources.ephemeralStorage", "1Gi"), "Restart", ["resources.ephemeralStorage"]),
    ("the model's revision", HUB, (HUB, at("model.source.hf.revision", "v2")), "Restart", ["model.source.hf.revision"]),
    ("the served name", {}, at("model.servedName", "x"), "Restart", ["model.servedName"]),
    ("the image", {}, at("image.reference", "y"), "Restart", ["image.reference"]),
    ("the engine", {}, at("engine.drafts", 0), "Restart", ["engine.drafts"]),
    ("a flag", {}, at("engine.extraArgs", ["--threads", "2"]), "Restart", ["engine.extraArgs"]),
    ("the GPU", {}, at("gpu.none", True), "Restart", ["gpu.none"]),
    ("a toleration", {}, at("pod.tolerations", [{"operator": "Exists"}]), "Restart", ["pod.tolerations"]),
    ("a node selector", {}, at("pod.nodeSelector", {"a": "b"}), "Restart", ["pod.nodeSelector"]),
    ("an environment variable", {}, at("pod.env", [{"name": "A", "value": "1"}]), "Restart", ["pod.env"]),
    ("the start-up budget", {}, at("startup.timeout", "1h"), "Restart", ["startup.timeout"]),
    ("a first restart", {}, at("restart", {"id": "1"}), "Restart", ["restart.id"]),
    ("a reason alone", at("restart.id", "1"), {"restart": {"id": "1", "reason": "x"}}, "None", ["restart.reason"]),
    ("the keys' Secret", {}, at("auth.apiKeysSecretRef.name", "k"), "Restart", ["auth.apiKeysSecretRef.name"]),
    ("another claim", CLAIM, (CLAIM, at("model.source.pvc.path", "x")), "Restart", ["model.source.pvc.path"]),
    (
        "a limit and the image: the strongest wins",
        {},
        {"limits": {"queuedRequests": 1}, "image": {"reference": "y"}, "replicas": 2},
        "Restart",
        ["image.reference", "replicas", "limits.queuedRequests"],
    ),
    (
        "a limit and cpu",
        {},
        {"limits": {"queuedRequests": 1}, "resources": {"cpu": 2}},
        "Resize",
        ["limits.queuedRequests", "resources.cpu"],
    ),
)


@pytest.mark.parametrize(("what", "before", "after", "class_", "fields"), ROWS, ids=[row[0] for row in ROWS])
def test_a_change_has_a_class_and_names_its_fields(
    what: str, before: Any, after: Any, class_: str, fields: list[str]
) -> None:
    old, new = (parsed(*c) if isinstance(c, tuple) else parsed(c) for c in (before, after))
    found = change.classify(old, new)
    assert (found.class_, [*found.fields]) == (class_, fields)
    assert bool(found) == bool(fields)
    assert (revision.of(old) != revision.of(new)) == (class_ == "Restart")


def test_every_field_of_the_spec_has_a_class() -> None:
    spec = open_api_schema()["properties"]["spec"]
    assert {change.class_of(path) for path, _, _ in walk(spec)} == {"None", "Hot", "Resize", "Restart"}
    with pytest.raises(KeyError):
        change.class_of("colour")


def test_fields_are_told_by_class() -> None:
    found = change.classify(parsed(), parsed(limits={"queuedRequests": 1}, image={"reference": "y"}))
    assert found.of_class("Hot") == ("limits.queuedRequests",)
    assert found.classes == {"image.reference": "Restart", "limits.queuedRequests": "Hot"}


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(one=specs(), other=specs())
def test_the_revision_changes_exactly_with_class_restart(one: dict[str, Any], other: dict[str, Any]) -> None:
    old, new = InferenceServerSpec.parse(one), InferenceServerSpec.parse(other)
    assert (revision.of(old) != revision.of(new)) == bool(change.classify(old, new).of_class("Restart"))
    assert not change.classify(old, InferenceServerSpec.parse(old.dump()))


def test_the_revision_of_a_known_spec_never_changes_by_itself() -> None:
    """A difference here restarts every pod of every user: raise TEMPLATE_VERSION on purpose or find the cause."""
    assert revision.TEMPLATE_VERSION == 1
    assert revision.of(parsed()) == "fb9ded7aaf"
    assert revision.of(parsed(HUB, engine={"drafts": 0}, pod={"env": [{"name": "A", "value": "1"}]})) == "8e90ba7580"


def test_only_referenced_keys_of_secrets_count() -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    spec = parsed(pod={"env": env})
    before = revision.secrets_digest(spec, {("Secret", "s"): {"k": "1", "other": "1"}})
    assert revision.secrets_digest(spec, {("Secret", "s"): {"k": "1", "other": "2"}}) == before
    assert revision.secrets_digest(spec, {("Secret", "s"): {"k": "2", "other": "1"}}) != before
    assert revision.secrets_digest(spec, {("Secret", "s"): None}) != before
    assert revision.references(spec) == (Reference("Secret", "s", "k"),)


def test_all_keys_of_an_env_from_count_and_no_reference_has_no_digest() -> None:
    spec = parsed(pod={"envFrom": [{"configMapRef": {"name": "c", "optional": True}}]})
    one = revision.secrets_digest(spec, {("ConfigMap", "c"): {"a": "1"}})
    assert one != revision.secrets_digest(spec, {("ConfigMap", "c"): {"a": "1", "b": "2"}})
    assert revision.references(spec) == (Reference("ConfigMap", "c", None, optional=True),)
    assert revision.secrets_digest(parsed(auth={"apiKeysSecretRef": {"name": "keys"}}), {}) == ""
