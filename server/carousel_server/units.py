"""Byte quantities and durations as Kubernetes and people write them. Knows no limit by name."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

BYTES_PATTERN = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"

_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_FACTORS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_bytes(value: Any) -> int:
    """`"256Mi"`, `"1G"` or `1048576` to bytes; ValueError says what is accepted."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"a byte quantity is a number or a string such as 256Mi, not {type(value).__name__}")
    text = str(value).strip()
    if not re.fullmatch(BYTES_PATTERN, text):
        raise ValueError(f"{text!r} is not a byte quantity: write digits and one of Ki Mi Gi Ti k M G T")
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text).groups()  # type: ignore[union-attr]
    return int(float(number) * _FACTORS[unit]) if "." in number else int(number) * _FACTORS[unit]


def parse_duration(value: Any) -> float:
    """`"1h30m"`, `"900s"`, `"250ms"` or a plain number of seconds to seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < 0 or value != value or value == float("inf"):
            raise ValueError(f"{value} is not a duration: it must be finite and not negative")
        return float(value)
    text = str(value).strip()
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is not a duration: write numbers with ms, s, m or h, such as 90s or 1h30m")
    return sum(float(n) * _SECONDS[u] for n, u in re.findall(r"([0-9.]+)(ms|s|m|h)", text))


def format_bytes(value: int) -> str:
    """Bytes as the largest exact binary unit (`268435456` to `"256Mi"`); exact, for machines to read back."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if value and value % _FACTORS[unit] == 0:
            return f"{value // _FACTORS[unit]}{unit}"
    return str(value)


def human_bytes(value: float) -> str:
    """Bytes for people: three significant digits and a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def format_duration(seconds: float) -> str:
    """Seconds as a duration that `parse_duration` reads back exactly."""
    if seconds == int(seconds):
        return f"{int(seconds)}s"
    return f"{round(seconds * 1000)}ms"


Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(format_bytes, return_type=str),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": BYTES_PATTERN}),
]
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
