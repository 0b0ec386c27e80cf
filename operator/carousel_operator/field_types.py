"""Field types of the InferenceServer: bounded strings, CPU quantities, and how lists merge on the API server.

The generator of the CRD (crd.py) reads the annotations; pydantic enforces the same bounds here.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from carousel_server.units import BYTES_PATTERN, format_bytes, parse_bytes
from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

CPU_PATTERN = r"^([0-9]+(\.[0-9]{1,3})?|[0-9]+m)$"
AUTO_BYTES_PATTERN = f"^(auto|{BYTES_PATTERN.strip('^$')})$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
QUALIFIED_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"


@dataclass(frozen=True)
class ListMap:
    """x-kubernetes-list-type: map, keyed by these fields."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class ListSet:
    """x-kubernetes-list-type: set; a list without a mark is atomic."""


@dataclass(frozen=True)
class MapLimit:
    """At most this many entries in a map."""

    max_properties: int


@dataclass(frozen=True)
class Format:
    """OpenAPI format of a string or integer."""

    name: str


def parse_cpu(value: Any) -> int:
    """`2`, `"1.5"` or `"500m"` to thousandths of a CPU; ValueError says what is accepted."""
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(CPU_PATTERN, text):
        raise ValueError(f"{text!r} is not a CPU quantity: write 2, 1.5 or 500m")
    return int(text[:-1]) if text.endswith("m") else round(float(text) * 1000)


def format_cpu(millis: int) -> str:
    """Thousandths of a CPU as the API server writes them (`"2"`, `"500m"`)."""
    return str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"


Cpu = Annotated[
    int,
    BeforeValidator(parse_cpu),
    PlainSerializer(format_cpu, return_type=str),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": CPU_PATTERN}),
]
AutoBytes = Annotated[
    int | None,
    BeforeValidator(lambda value: None if value in ("auto", None) else parse_bytes(value)),
    PlainSerializer(lambda value: None if value is None else format_bytes(value), return_type=str | None),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": AUTO_BYTES_PATTERN}),
]
Text = Annotated[str, Field(max_length=1024)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=QUALIFIED_NAME)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]
Timestamp = Annotated[str, Field(max_length=32), Format("date-time")]
Labels = Annotated[dict[str, LabelValue], MapLimit(64)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], MapLimit(64)]
