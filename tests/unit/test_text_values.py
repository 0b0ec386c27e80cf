"""The text of a value to JSON by its schema."""

import json
from typing import Any

import pytest
from carousel_server.tool_value import OMITTED, arguments, properties, types, unframe, value
from hypothesis import given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
DEFS = {"$defs": {"P": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}, "a/b~c": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        *[("\nx\n", "x"), ("x", "x"), ("\nx", "x"), ("x\n", "x\n"), ("\n\n", ""), ("\n", ""), ("", "")],
        *[("\n\nx\n\n", "\nx\n"), (" \nx\n", " \nx\n")],
    ],
)
def test_one_newline_goes_from_each_side_and_the_last_only_with_the_first(text: str, inner: str) -> None:
    assert unframe(text) == inner


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "integer"}, " 5 ", 5),
        ({"type": "integer"}, "-0", 0),
        ({"type": "integer"}, "5.0", "5.0"),
        ({"type": "integer"}, "+5", "+5"),
        ({"type": "integer"}, "007", "007"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
        ({"type": "number"}, "1e5", 100000.0),
        ({"type": "number"}, "7", 7),
        ({"type": "number"}, "Infinity", "Infinity"),
        ({"type": "number"}, "-1e999", "-1e999"),
        ({"type": "boolean"}, "FALSE", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "null"}, "None", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "None", "None"),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"type": ["string", "object"]}, '{"a": 1}', {"a": 1}),
        ({"type": ["integer", "boolean"]}, "true", True),
        ({"type": "array"}, "[1, 2", "[1, 2"),
        ({"type": "array"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "array"}, "['a']", "['a']"),
        ({"type": "object"}, '{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        ({"type": "object"}, '{"a": "\\ud83d\\ude80"}', {"a": "🚀"}),
        ({"type": "object"}, "[" * 100_000, "[" * 100_000),
        ({"type": "object"}, '{"a": [NaN]}', '{"a": [NaN]}'),
        ({"properties": {}}, '{"a": 1}', {"a": 1}),
        ({"items": {}}, "[1]", [1]),
        ({"enum": ["1", 2]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"enum": [1, True]}, "true", True),
        ({"const": 3}, "3", 3),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": "integer"}]}, "3", 3),
        ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, "3", 3),
        ({"anyOf": [{"type": "integer"}, {}]}, "3", "3"),
        ({"$ref": "#/$defs/P"}, "{}", {}),
        ({"$ref": "#/$defs/a~1b~0c"}, "5", 5),
        ({"$ref": "#/$defs/Loop"}, "5", "5"),
        ({"$ref": "#/$defs/missing"}, "5", "5"),
        ({"$ref": "elsewhere.json"}, "[5]", [5]),
        (True, "[5]", [5]),
        (False, "5", "5"),
        ({}, "null", "null"),
        ({}, "", ""),
        ({"type": "string"}, " x ", " x "),
        ({"type": "integer"}, " ", OMITTED),
        ({"type": ["integer", "null"]}, "", OMITTED),
    ],
)  # fmt: skip
def test_a_value_gets_the_type_of_its_schema_or_stays_text(schema: Any, text: str, expected: Any) -> None:
    found = value(text, schema, DEFS)
    assert found == expected
    assert type(found) is type(expected)


@given(JSON)
def test_any_json_value_that_the_template_prints_is_read_back(item: Any) -> None:
    kinds = {"null", "boolean", "integer", "number", "array", "object"}
    printed = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    schema = {"type": "string"} if isinstance(item, str) else {"type": sorted(kinds)}
    assert value(printed, schema, {}) == item


@given(st.text(), JSON)
def test_arguments_are_always_valid_json(text: str, schema: Any) -> None:
    json.dumps(arguments([("k", text)], {"properties": {"k": {"type": "object", "enum": [schema]}}}), allow_nan=False)


WORDS = ["type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "properties", "items", "required", "nullable"]
SCHEMAS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["object", "string", "integer", "#", "#/properties/k"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*WORDS, "k"]), inner, max_size=4),
    max_leaves=12,
)


@given(SCHEMAS, st.sampled_from(["5", "null", "x", '{"a": []}', ""]))
def test_a_schema_of_any_shape_does_no_harm(schema: Any, text: str) -> None:
    found = arguments([("k", text)], {"properties": {"k": schema}} if not isinstance(schema, dict) else schema)
    json.dumps(found, allow_nan=False)


def test_of_a_repeated_key_the_last_counts() -> None:
    assert arguments([("k", "1"), ("k", "2")], {"properties": {"k": {"type": "integer"}}}) == {"k": 2}


def test_properties_of_references_and_combinations_count() -> None:
    root = {"allOf": [{"$ref": "#/$defs/A"}], "properties": {"b": True}, "$defs": {"A": {"properties": {"a": {}}}}}
    assert set(properties(root, root)) == {"a", "b"}
    assert types(root, root) == {"object"}
