"""The OpenAPI document of the client port, from the models that validate its requests."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from carousel_server.failure import CODES
from carousel_server.messages import Strict
from carousel_server.request import ChatBody, CompletionBody, SessionBody

# path, method, method of routes.Routes
OPERATIONS: tuple[tuple[str, str, str], ...] = (
    ("/v1/chat/completions", "POST", "chat"),
    ("/v1/completions", "POST", "completion"),
    ("/v1/sessions", "POST", "create_session"),
    ("/v1/sessions", "GET", "list_sessions"),
    ("/v1/sessions/{id}", "GET", "show_session"),
    ("/v1/sessions/{id}", "DELETE", "delete_session"),
    ("/v1/requests", "GET", "list_requests"),
    ("/v1/requests/{id}/cancel", "POST", "cancel_request"),
    ("/v1/models", "GET", "list_models"),
    ("/v1/models/{id}", "GET", "show_model"),
)

_SUMMARIES = {
    "chat": (
        "A chat turn, as JSON or as server-sent events.",
        "ChatBody",
        (200,),
        (400, 404, 409, 410, 413, 429, 499, 500),
    ),
    "completion": (
        "Continue a text, without the chat template.",
        "CompletionBody",
        (200,),
        (400, 404, 409, 413, 429, 499, 500),
    ),
    "create_session": ("Create a session.", "SessionBody", (201,), (400, 404, 413, 429)),
    "list_sessions": ("The key's sessions on this pod.", None, (200,), ()),
    "show_session": ("A session.", None, (200,), (404, 410)),
    "delete_session": ("Drop a session.", None, (200,), (404, 409, 410)),
    "list_requests": ("The key's requests on this pod.", None, (200,), ()),
    "cancel_request": ("Cancel a request.", None, (200,), (404, 409, 410)),
    "list_models": ("The model of this server.", None, (200,), ()),
    "show_model": ("The model of this server.", None, (200,), (404,)),
}
_REPLIES = {
    "chat": "ChatCompletion",
    "completion": "Completion",
    "create_session": "Session",
    "list_sessions": "SessionList",
    "show_session": "Session",
    "delete_session": "DeletedSession",
    "list_requests": "RequestList",
    "cancel_request": "CancelledRequest",
    "list_models": "ModelList",
    "show_model": "Model",
}
_EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "description": "A chunk as JSON, an object with `error`, or [DONE]."}},
}


def document(*, keys_required: bool) -> dict[str, Any]:
    """OpenAPI 3.2: the first version that has a word for the events of a stream."""
    schemas = {**_reply_schemas(), **_body_schemas(ChatBody, CompletionBody, SessionBody)}
    paths: dict[str, dict[str, Any]] = {}
    for path, method, name in OPERATIONS:
        paths.setdefault(path, {})[method.lower()] = _operation(path, name, keys_required=keys_required)
    health = {
        "200": _content("application/json", "Health", "In order."),
        "503": _content("application/json", "Health", "Loading, or closed."),
    }
    paths["/health"] = {"get": {"operationId": "health", "responses": health, "security": []}}
    metrics = {"200": _content("text/plain", None, "Prometheus text.")}
    paths["/metrics"] = {"get": {"operationId": "metrics", "responses": metrics, "security": []}}
    found: dict[str, Any] = {
        "openapi": "3.2.0",
        "info": {"title": "Carousel", "version": _version(), "description": "Chat with in-memory sessions."},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if keys_required:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    return found


def _operation(path: str, name: str, *, keys_required: bool) -> dict[str, Any]:
    summary, body, good, bad = _SUMMARIES[name]
    statuses = sorted({*bad, 503, *((401,) if keys_required else ())})
    replies: dict[str, Any] = {}
    for status in good:
        replies[str(status)] = _content("application/json", _REPLIES[name], "Done.")
        if name in ("chat", "completion"):
            replies[str(status)]["content"]["text/event-stream"] = {"itemSchema": _EVENT}
    for status in statuses:
        codes = ", ".join(code for code, (known, _) in CODES.items() if known == status)
        replies[str(status)] = _content("application/json", "Error", f"One of: {codes}.")
        if status in (429, 503):
            replies[str(status)]["headers"] = {"Retry-After": {"schema": {"type": "string"}}}
    operation: dict[str, Any] = {"operationId": name, "summary": summary, "responses": replies}
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body}"}
        operation["requestBody"] = {
            "required": name != "create_session",
            "content": {"application/json": {"schema": schema}},
        }
    if "{id}" in path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def _content(kind: str, schema: str | None, description: str) -> dict[str, Any]:
    shape = {"type": "string"} if schema is None else {"$ref": f"#/components/schemas/{schema}"}
    return {"description": description, "content": {kind: {"schema": shape}}}


def _body_schemas(*shapes: type[Strict]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for shape in shapes:
        schema = shape.model_json_schema(ref_template="#/components/schemas/{model}")
        found.update(schema.pop("$defs", {}))
        found[shape.__name__] = schema
    for schema in found.values():
        _allow_nulls(schema)
    return found


def _allow_nulls(schema: dict[str, Any]) -> None:
    """A null counts as absent: of every optional member, and of members that are unknown."""
    required = schema.get("required", ())
    for name, member in schema.get("properties", {}).items():
        options = member.get("anyOf", [])
        for option in options:
            if "patternProperties" in option:
                option["additionalProperties"] = False
        if name not in required and {"type": "null"} not in options:
            described = {key: member.pop(key) for key in ("default", "description", "title") if key in member}
            schema["properties"][name] = {**described, "anyOf": [member, {"type": "null"}]}
    if schema.get("additionalProperties") is False:
        schema["additionalProperties"] = {"type": "null"}


def _object(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def _reply_schemas() -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    count: dict[str, Any] = {"type": "integer", "minimum": 0}
    number: dict[str, Any] = {"type": "number", "minimum": 0}
    maybe_text: dict[str, Any] = {"type": ["string", "null"]}
    maybe_count: dict[str, Any] = {"type": ["integer", "null"], "minimum": 0}
    some: dict[str, Any] = {"type": ["object", "null"]}
    finish = {"enum": ["stop", "length", "tool_calls"]}
    pod = _object({"ordinal": count, "boot_id": text})
    call = _object({"id": text, "type": {"const": "function"}, "function": _object({"name": text, "arguments": text})})
    message = _object(
        {"role": {"const": "assistant"}, "content": maybe_text}, tool_calls={"type": "array", "items": call}
    )
    usage = _object(
        {
            "prompt_tokens": count,
            "completion_tokens": count,
            "total_tokens": count,
            "prompt_tokens_details": _object({"cached_tokens": count}),
        }
    )
    chat_choice = _object({"index": count, "message": message, "finish_reason": finish, "logprobs": some})
    text_choice = _object({"index": count, "text": text, "finish_reason": finish, "logprobs": some})
    session = _object(
        {
            "id": text,
            "object": {"const": "session"},
            "created": count,
            "idle_seconds": number,
            "turns": count,
            "last_request_id": maybe_text,
            "in_flight": {"type": "boolean"},
            "context_tokens": count,
            "history_bytes": count,
        }
    )
    request = _object(
        {
            "id": text,
            "object": {"const": "request"},
            "session_id": maybe_text,
            "phase": text,
            "queue_position": maybe_count,
            "prompt_tokens": count,
            "cached_tokens": count,
            "output_tokens": count,
            "reserved_bytes": count,
            "age_seconds": number,
        }
    )
    model = _object(
        {"id": text, "object": {"const": "model"}, "created": count, "owned_by": text, "max_model_len": count}
    )

    def completion(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
        one = {"type": "array", "items": choice, "minItems": 1, "maxItems": 1}
        return _object(
            {"id": text, "object": {"const": kind}, "created": count, "model": text, "choices": one, "usage": usage},
            session_id=text,
        )

    def listed(name: str, **more: Any) -> dict[str, Any]:
        data = {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}}
        return _object({"object": {"const": "list"}, "data": data, **more})

    error = _object(
        {"message": text, "type": {"enum": sorted({kind for _, kind in CODES.values()})}, "param": maybe_text,
         "code": {"enum": list(CODES)}}
    )  # fmt: skip
    return {
        "Error": _object({"error": error}),
        "ChatCompletion": completion("chat.completion", chat_choice),
        "Completion": completion("text_completion", text_choice),
        "Session": session,
        "SessionList": listed("Session", pod=pod),
        "DeletedSession": _object({"id": text, "object": {"const": "session"}, "deleted": {"const": True}}),
        "Request": request,
        "RequestList": listed("Request", pod=pod),
        "CancelledRequest": _object({"id": text, "object": {"const": "request"}, "cancelled": {"const": True}}),
        "Model": model,
        "ModelList": listed("Model"),
        "Health": _object(
            {"status": text, "progress": {"type": "number", "minimum": 0, "maximum": 1}, "message": text}
        ),
    }


def _version() -> str:
    try:
        return version("carousel")
    except PackageNotFoundError:
        return "0"
