"""Pydantic models to structural schemas: what the API server takes, which is less than JSON Schema. Pure.

No `$ref`, no `anyOf` with null, no `additionalProperties: false`; every string, list and map is bounded, so that the
cost of the rules is; every list says how it merges.
"""

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as at
from carousel_server.units import BYTES_PATTERN, DURATION_PATTERN, format_bytes, format_duration
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticUndefined

from carousel_operator.field_types import CPU_PATTERN, Format, ListMap, ListSet, MapLimit, format_cpu

Schema = dict[str, Any]
MAX_STRING, MAX_ITEMS, MAX_PROPERTIES, MAX_QUANTITY = 1024, 64, 64, 24
INT64 = 2**63 - 1


def object_schema(model: type[BaseModel]) -> Schema:
    """`type: object` of a model, with descriptions, bounds and defaults."""
    properties, required = {}, []
    for name, field in model.model_fields.items():
        alias = field.alias or name
        properties[alias] = _field(field)
        if field.is_required():
            required.append(alias)
    schema: Schema = {"type": "object", "description": _first_line(model)}
    if properties:
        schema["properties"] = properties
    if required:
        schema["required"] = required
    return schema


def _field(field: FieldInfo) -> Schema:
    schema = _type(field.annotation, list(field.metadata))
    if field.description:
        schema["description"] = field.description
    default = _default(field)
    if default is not None:
        schema["default"] = default
    return dict(sorted(schema.items(), key=lambda item: item[0] != "description"))


def _type(annotation: Any, metadata: list[Any]) -> Schema:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0], [*args[1:], *metadata])
    if origin in (Union, types.UnionType):
        inner = [a for a in args if a is not type(None)]
        if len(inner) != 1:
            raise TypeError(f"{annotation}: a structural schema has no union")
        return _type(inner[0], metadata)
    metadata = [m for item in metadata for m in (item.metadata if isinstance(item, FieldInfo) else [item])]
    custom = next((m for m in metadata if isinstance(m, WithJsonSchema)), None)
    if custom and custom.json_schema:
        return _quantity(custom.json_schema, metadata)
    if origin is Literal:
        kinds = {type(a) for a in args}
        return {"type": {str: "string", bool: "boolean"}[kinds.pop()], "enum": list(args)}
    if origin is list:
        return _list(args[0], metadata)
    if origin is dict:
        limit = next((m.max_properties for m in metadata if isinstance(m, MapLimit)), MAX_PROPERTIES)
        return {"type": "object", "additionalProperties": _type(args[1], []), "maxProperties": limit}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return object_schema(annotation)
    return _scalar(annotation, metadata)


def _scalar(annotation: Any, metadata: list[Any]) -> Schema:
    form = next((m.name for m in metadata if isinstance(m, Format)), None)
    if annotation is bool:
        return {"type": "boolean"}
    if annotation is int:
        schema: Schema = {"type": "integer", **_bounds(metadata)}
        wide = schema.get("maximum", INT64) > 2**31 - 1
        return {**schema, "format": form or ("int64" if wide else "int32")}
    if annotation is str:
        schema = {"type": "string", "maxLength": MAX_STRING, **({"format": form} if form else {})}
        for item in metadata:
            for key, name in (("max_length", "maxLength"), ("min_length", "minLength"), ("pattern", "pattern")):
                if (value := getattr(item, key, None)) is not None:
                    schema[name] = value
        return schema
    raise TypeError(f"{annotation}: no structural schema for it")


def _list(item: Any, metadata: list[Any]) -> Schema:
    schema: Schema = {"type": "array", "items": _type(item, []), "maxItems": MAX_ITEMS}
    for entry in metadata:
        for key, name in (("max_length", "maxItems"), ("min_length", "minItems")):
            if (value := getattr(entry, key, None)) is not None:
                schema[name] = value
    if keyed := next((m for m in metadata if isinstance(m, ListMap)), None):
        return {**schema, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keyed.keys)}
    kind = "set" if any(isinstance(m, ListSet) for m in metadata) else "atomic"
    return {**schema, "x-kubernetes-list-type": kind}


def _bounds(metadata: list[Any]) -> Schema:
    """Bounds of an integer; exclusive ones become inclusive."""
    found: Schema = {}
    for item in metadata:
        if isinstance(item, at.Ge):
            found["minimum"] = item.ge
        elif isinstance(item, at.Gt):
            found["minimum"] = int(str(item.gt)) + 1
        elif isinstance(item, at.Le):
            found["maximum"] = item.le
        elif isinstance(item, at.MultipleOf):
            found["multipleOf"] = item.multiple_of
    return found


def _quantity(schema: Mapping[str, Any], metadata: list[Any]) -> Schema:
    """A byte quantity, a CPU quantity or a duration: the pattern says what is one, CEL what is large enough."""
    found = {**schema, "maxLength": MAX_QUANTITY}
    checks = []
    for item in metadata:
        for kind, sign, words in _BOUNDS:
            if isinstance(item, kind):
                bound = int(str(getattr(item, kind.__name__.lower())))
                checks += _bound(str(schema.get("pattern")), bound, sign, words)
    return {**found, "x-kubernetes-validations": checks} if checks else found


_BOUNDS = ((at.Gt, ">", "more than"), (at.Ge, ">=", "at least"), (at.Le, "<=", "at most"))


def _bound(pattern: str, bound: int, sign: str, words: str) -> list[Schema]:
    if pattern == DURATION_PATTERN:
        if bound == 0 and sign == ">=":
            return []  # the pattern has no sign
        shown = _short_duration(bound)
        return [{"rule": f"duration(self) {sign} duration('{shown}')", "message": f"must be {words} {shown}"}]
    shown = format_bytes(bound) if pattern == BYTES_PATTERN else format_cpu(bound)
    rule = f"quantity(string(self)).compareTo(quantity('{shown}')) {sign} 0"
    return [{"rule": rule, "message": f"must be {words} {shown}"}]


def _default(field: FieldInfo) -> Any:
    """The default as the API server writes it; none for what is simply absent."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or value is None or value in ([], {}):
        return None
    if isinstance(value, BaseModel):
        return {}  # its own fields have defaults
    custom = next((m.json_schema for m in field.metadata if isinstance(m, WithJsonSchema)), None)
    pattern = (custom or {}).get("pattern")
    if pattern == DURATION_PATTERN:
        return _short_duration(value)
    if pattern == BYTES_PATTERN:
        return format_bytes(value)
    return format_cpu(value) if pattern == CPU_PATTERN else value


def _short_duration(seconds: float) -> str:
    """As people write it: 10m rather than 600s."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return format_duration(seconds)


def _first_line(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())
