"""The CRD as data: what the API server would refuse or regret, found without one."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from carousel_operator import crd, names
from carousel_operator.resource import InferenceServerSpec
from carousel_operator.rules import SPEC_RULES
from carousel_operator.schema import object_schema
from pydantic import BaseModel

from tests.operator.specs import RULE_CASES

Schema = dict[str, Any]


def every(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from every(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from every(schema[key], f"{path}[]")


NODES = [(path, node) for path, node in every(crd.open_api_schema()) if path.startswith((".spec", ".status"))]


def test_no_node_uses_what_a_structural_schema_forbids() -> None:
    forbidden = {"$ref", "anyOf", "oneOf", "allOf", "title", "$defs", "const", "exclusiveMinimum", "nullable"}
    assert [(path, key) for path, node in NODES for key in node if key in forbidden] == []
    assert [path for path, node in NODES if node.get("additionalProperties") in (True, False)] == []


def test_every_node_has_a_type_or_is_int_or_string() -> None:
    assert [path for path, node in NODES if "type" not in node and not node.get("x-kubernetes-int-or-string")] == []


def test_every_string_list_and_map_is_bounded_so_that_rules_have_a_cost() -> None:
    unbounded = []
    for path, node in NODES:
        text = node.get("type") == "string" and "enum" not in node
        if (text or node.get("x-kubernetes-int-or-string")) and "maxLength" not in node:
            unbounded.append(path)
        if node.get("type") == "array" and "maxItems" not in node:
            unbounded.append(path)
        if "additionalProperties" in node and "maxProperties" not in node:
            unbounded.append(path)
    assert unbounded == []


def test_every_list_says_how_it_merges_and_keys_of_maps_are_required() -> None:
    for path, node in NODES:
        if node.get("type") == "array":
            assert node["x-kubernetes-list-type"] in ("atomic", "set", "map"), path
            if node["x-kubernetes-list-type"] == "map":
                assert set(node["x-kubernetes-list-map-keys"]) <= set(node["items"]["required"]), path


def test_conditions_are_a_map_by_type() -> None:
    node = dict(NODES)[".status.conditions"]
    assert node["x-kubernetes-list-map-keys"] == ["type"]


def test_every_leaf_says_what_it_means() -> None:
    kubernetes = (".spec.pod.", ".spec.networkPolicy.from")
    silent = [
        path
        for path, node in NODES
        if not path.endswith("[]") and "description" not in node and not path.startswith(kubernetes)
    ]
    assert silent == []


def test_columns_find_a_condition_by_its_type_never_by_its_index() -> None:
    paths = {name: path for name, _, path, _, _ in crd.COLUMNS}
    assert list(paths) == ["Ready", "Reason", "Model", "Replicas", "Sessions", "Age", "Draining", "Revision", "URL"]
    assert not [path for path in paths.values() if re.search(r"\[\d+\]", path)]
    assert paths["Reason"] == '.status.conditions[?(@.type=="Ready")].reason'


def test_columns_and_scale_read_fields_that_exist() -> None:
    known = {path for path, _ in NODES}
    scale = crd.custom_resource_definition()["spec"]["versions"][0]["subresources"]["scale"]
    plain = [path for _, _, path, _, _ in crd.COLUMNS if "[?" not in path and not path.startswith(".metadata")]
    assert {*plain, *scale.values()} <= known


def test_every_rule_has_a_case_that_it_accepts_and_one_that_it_refuses() -> None:
    transitions = {rule.name for rule in SPEC_RULES if rule.holds is None}
    assert transitions == {"source-kind-immutable", "cache-immutable"}
    assert {case.rule for case in RULE_CASES} == {rule.name for rule in SPEC_RULES} - transitions


@pytest.mark.parametrize("rule", SPEC_RULES, ids=lambda rule: rule.name)
def test_a_rules_message_names_its_field(rule: Any) -> None:
    assert rule.field.lstrip(".").split(".")[-1] in rule.message
    assert rule.field in {path.removeprefix(".spec") for path, _ in NODES}


def test_the_digest_of_the_schema_is_on_the_crd() -> None:
    annotations = crd.custom_resource_definition()["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_SCHEMA] == crd.schema_digest()


def test_defaults_in_the_schema_are_the_defaults_of_the_models() -> None:
    def defaults(node: Schema) -> Any:
        given = node.get("default")
        nested = {k: v for k, f in node.get("properties", {}).items() if (v := defaults(f)) is not None}
        return {**given, **nested} if isinstance(given, dict) else given

    schema = object_schema(InferenceServerSpec)
    filled = {k: v for k, field in schema["properties"].items() if (v := defaults(field)) is not None}
    smallest = {"model": {"source": {"embedded": {}}}, "image": {"reference": "x"}}
    assert InferenceServerSpec.parse({**smallest, **filled}) == InferenceServerSpec.parse(smallest)
    assert filled["drain"] == {
        "sessionTimeout": "10m",
        "requestTimeout": "2m",
        "idleGrace": "2m",
        "policy": "WaitForSessions",
    }


def test_a_model_with_a_union_has_no_schema() -> None:
    class Odd(BaseModel):
        """A model."""

        either: int | str

    with pytest.raises(TypeError, match="no union"):
        object_schema(Odd)
