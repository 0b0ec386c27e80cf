"""The text of a call's value to a JSON value of the type that the tool's schema declares. Knows no XML.

A value that does not parse as its type stays a string: the client's own validation can name the fault, this server
cannot.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

Schema = Any  # a JSON schema: an object, or true or false

_ANY_TYPE: Final = None
_DEEPEST = 32  # references and combinations followed in one schema
_BOOLEANS: Final = {"true": True, "false": False}
_NAMES: Final = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class Omitted:
    """The value was left empty, and its type has no empty value."""


OMITTED: Final = Omitted()


def arguments(values: Iterable[tuple[str, str]], schema: Schema) -> dict[str, Any]:
    """Values as they stand between the marks to the arguments of a call; of a repeated key the last counts."""
    known = properties(schema, schema)
    typed = {key: value(unframe(text), known.get(key, {}), schema) for key, text in values}
    return {key: item for key, item in typed.items() if not isinstance(item, Omitted)}


def unframe(text: str) -> str:
    """Without the newline behind the opening mark and, if that was there, the one before the closing mark."""
    if not text.startswith("\n"):
        return text
    return text[1:].removesuffix("\n")


def value(text: str, schema: Schema, root: Schema) -> Any:
    """`text` as the type of `schema`, whose references point into `root`.

    string: verbatim. Others: the JSON literal if it has an allowed type, `True` and `False` as booleans, `None` as
    null; an integer is written with digits only. A union with string reads only null, objects and arrays as JSON; a
    schema without a type reads only objects and arrays. Everything else is the text itself.
    """
    if text in (members := enumerated(schema)):
        return text
    allowed = types(schema, root)
    if allowed is _ANY_TYPE:
        allowed, text_allowed = frozenset({"object", "array"}), True
    elif text_allowed := "string" in allowed:
        allowed &= {"null", "object", "array"}
    word = text.strip()
    if not word and not text_allowed:
        return OMITTED
    if "boolean" in allowed and word.lower() in _BOOLEANS:
        return _BOOLEANS[word.lower()]
    if "null" in allowed and word == "None" and not text_allowed:
        return None
    try:
        found = _json(word) if allowed or members else text
    except (ValueError, RecursionError):
        return text
    listed = any(type(found) is type(member) and found == member for member in members)
    return found if listed or _NAMES[type(found)] in allowed else text


def enumerated(schema: Schema) -> list[Any]:
    """The members of a schema that lists its values, [] for any other."""
    if not isinstance(schema, Mapping):
        return []
    return [schema["const"]] if "const" in schema else _list(schema.get("enum"))


def types(schema: Schema, root: Schema, deep: int = 0) -> frozenset[str] | None:
    """The JSON types that a schema allows, None when it does not say. `number` comes with `integer`."""
    if not isinstance(schema, Mapping) or deep > _DEEPEST:
        return _ANY_TYPE
    found: list[frozenset[str] | None] = []
    if "$ref" in schema:
        found.append(types(_resolve(schema["$ref"], root), root, deep + 1))
    declared = schema.get("type")
    if names := [
        name for name in ([declared] if isinstance(declared, str) else _list(declared)) if isinstance(name, str)
    ]:
        found.append(frozenset(names) | ({"integer"} if "number" in names else frozenset()))
    if members := enumerated(schema):
        found.append(frozenset(_NAMES.get(type(member), "object") for member in members))
    for word in ("anyOf", "oneOf"):
        if branches := _list(schema.get(word)):
            found.append(_union([types(branch, root, deep + 1) for branch in branches]))
    found += [types(branch, root, deep + 1) for branch in _list(schema.get("allOf"))]
    if not names and {"properties", "additionalProperties", "required"} & schema.keys():
        found.append(frozenset({"object"}))
    if not names and {"items", "prefixItems"} & schema.keys():
        found.append(frozenset({"array"}))
    known = [one for one in found if one is not None]
    if not known:
        return _ANY_TYPE
    both = frozenset.intersection(*known)
    return both | {"null"} if schema.get("nullable") is True else both


def properties(schema: Schema, root: Schema, deep: int = 0) -> dict[str, Schema]:
    """The declared properties of an object schema, those of its references and combinations included."""
    if not isinstance(schema, Mapping) or deep > _DEEPEST:
        return {}
    found: dict[str, Schema] = {}
    if "$ref" in schema:
        found |= properties(_resolve(schema["$ref"], root), root, deep + 1)
    for word in ("allOf", "anyOf", "oneOf"):
        for branch in _list(schema.get(word)):
            found |= properties(branch, root, deep + 1)
    own = schema.get("properties")
    return found | (dict(own) if isinstance(own, Mapping) else {})


def _list(value: Any) -> list[Any]:
    """A schema comes from a client: what should be a list and is none counts for nothing."""
    return value if isinstance(value, list) else []


def _union(branches: list[frozenset[str] | None]) -> frozenset[str] | None:
    known = [branch for branch in branches if branch is not None]
    return frozenset[str]().union(*known) if len(known) == len(branches) else _ANY_TYPE


def _resolve(pointer: Any, root: Schema) -> Schema:
    """What a local reference (`#/$defs/P`) points to; true, which allows everything, for any other."""
    if not isinstance(pointer, str) or not pointer.startswith("#"):
        return True
    target = root
    for part in pointer[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or key not in target:
            return True
        target = target[key]
    return target


def _json(text: str) -> Any:
    """A JSON value that JSON can carry back: no NaN, no infinity, no lone surrogate. Raises ValueError."""
    found = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    if re.search(r"\\u[dD][89a-fA-F]", text):
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is out of range")
    return number
