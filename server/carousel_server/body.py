"""The bytes of a request body: read within limits, parsed once, nothing in them trusted. Knows no field."""

import asyncio
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pydantic_core import from_json

from carousel_server.failure import Failure
from carousel_server.units import human_bytes

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Disconnected(Exception):
    """The client left before its body was complete."""


async def read_body(receive: Receive, declared: int | None, limit_bytes: int, idle_seconds: float) -> bytes:
    """The whole body. `declared` is Content-Length, None when the body is chunked.

    A body over the limit is refused without reading the rest; one that stands still for `idle_seconds` gets 408.
    """
    if declared is not None and declared > limit_bytes:
        raise _too_large(declared, limit_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            message = await asyncio.wait_for(receive(), idle_seconds)
        except TimeoutError:
            raise Failure(
                "request_timeout", f"The body stood still for {idle_seconds:g} s after {size} bytes; send it again."
            ) from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(None, limit_bytes)
        parts.append(chunk)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(declared: int | None, limit_bytes: int) -> Failure:
    size = f"The body has {declared} bytes; the" if declared is not None else "The body is too large; the"
    return Failure("body_too_large", f"{size} limit is {limit_bytes} bytes ({human_bytes(limit_bytes)}).")


def parse_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Refuses bad UTF-8, NaN, lone surrogates, and nesting deeper than 200, quickly."""
    if not body:
        raise Failure("invalid_request", "The body is empty; send a JSON object.")
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Failure("invalid_request", f"The body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise Failure("invalid_request", f"The body is a JSON {json_type(value)}; send an object.")
    return value


def json_type(value: Any) -> str:
    """The JSON name of a Python value's type."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def is_finite(value: Any) -> bool:
    """False when a number such as 1e999 hides in a JSON value: it would be printed as `Infinity`."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            return False
    return True
