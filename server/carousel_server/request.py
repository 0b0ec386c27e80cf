"""What a client may ask: every field of the API, strictly typed, and its translation into a TurnRequest.

Unknown fields are refused with the nearest known name. Knows no session, token or socket.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError

from carousel_server.failure import Failure
from carousel_server.messages import (
    NAME,
    Content,
    MessageShape,
    Strict,
    ToolShapeDeclaration,
    declared_tools,
    join_text,
    normalise,
)
from carousel_server.turn import Constraint, Settings, TurnRequest

REQUEST_ID = r"^[A-Za-z0-9._:-]{1,128}$"
StopString = Annotated[str, Field(min_length=1, max_length=1024)]
PromptText = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]

# Fields of other servers, and why they are refused here; all others are refused with the nearest known name.
UNSUPPORTED: Mapping[str, str] = {
    "reasoning_effort": "this model's thinking mode is off and has no effort control",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "stop_token_ids": "use stop with strings",
    "best_of": "one choice is made a request",
    "echo": "the prompt is not repeated",
    "suffix": "the model does not fill in the middle",
    "guided_json": "use response_format with json_schema",
    "grammar": "use response_format with json_schema",
    "ignore_eos": "generation ends where the model ends it",
    "min_tokens": "generation ends where the model ends it",
    "chat_template_kwargs": "the template of the checkpoint is used as it is",
    "store": "nothing is stored; use a session",
    "modalities": "the model reads and writes text",
    "audio": "the model reads and writes text",
}


class SamplingFields(Strict):
    """The controls of sampling and output that a session may hold as defaults."""

    temperature: float | None = Field(None, ge=0, le=2, description="0 picks the likeliest token.")
    top_p: float | None = Field(None, ge=0, le=1, description="Nucleus; 1 is off.")
    top_k: int | None = Field(None, ge=-1, lt=2**31, description="Likeliest tokens kept; 0 or -1 is off.")
    min_p: float | None = Field(None, ge=0, le=1, description="Share of the likeliest token's probability; 0 is off.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**64, description="Key of the random draws.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Counts prompt and output.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Counts prompt and output.")
    repetition_penalty: float | None = Field(None, gt=0, le=10, description="1 is off.")
    logit_bias: (
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None
    ) = Field(None, max_length=1024, description="Token id to a number added to its logit.")
    stop: StopString | Annotated[list[StopString], Field(max_length=4)] | None = Field(
        None, description="Up to four strings that end the reply; they are not part of it."
    )
    max_tokens: int | None = Field(None, ge=1, lt=2**31, description="Output tokens at most.")
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31, description="Wins over max_tokens.")
    parallel_tool_calls: bool | None = Field(None, description="False: at most one call a reply.")


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool | None = Field(None, description="One more chunk with the usage, before [DONE].")


class OneTurn(SamplingFields):
    """What chat and completion have in common."""

    model: str | None = Field(None, max_length=256, description="The served name; absent: that model.")
    n: Literal[1] | None = Field(None, description="Only 1.")
    stream: bool | None = Field(None, description="Server-sent events instead of one JSON body.")
    stream_options: StreamOptions | None = None
    request_id: str | None = Field(None, pattern=REQUEST_ID, description="The reply's id, to cancel it by.")
    context_tokens: int | None = Field(None, ge=1, lt=2**31, description="A smaller context than the server's.")
    user: str | None = Field(None, max_length=512, description="Kept in the access log only.")
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None = Field(
        None, max_length=16, description="Kept in the access log only."
    )


class NamedFunction(Strict):
    """The name inside a tool choice."""

    name: str = Field(pattern=NAME)


class NamedChoice(Strict):
    """A function that must be called."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchemaShape(Strict):
    """The schema of a structured reply; it is always enforced."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of the reply's text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaShape | None = None


class ChatBody(OneTurn):
    """`POST /v1/chat/completions`."""

    messages: list[MessageShape] = Field(min_length=1, description="With a session: only what is new.")
    session_id: str | None = Field(None, max_length=256, description="The session this turn belongs to.")
    tools: list[ToolShapeDeclaration] | None = Field(None, max_length=256)
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = Field(None, description="Log probabilities of the reply's tokens.")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="Needs logprobs: true.")


class CompletionBody(OneTurn):
    """`POST /v1/completions`: plain text or token ids, no template."""

    prompt: (
        PromptText
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[PromptText], Field(min_length=1, max_length=1)]
    ) = Field(description="Text, or token ids.")
    logprobs: int | None = Field(None, ge=0, le=20, description="Log probabilities with this many alternatives.")


class SessionBody(SamplingFields):
    """`POST /v1/sessions`: defaults of the session's turns."""

    model: str | None = Field(None, max_length=256)
    system: Content | None = Field(None, description="The system message.")
    tools: list[ToolShapeDeclaration] | None = Field(None, max_length=256)
    context_tokens: int | None = Field(None, ge=1, lt=2**31, description="A smaller context than the server's.")


Shape = TypeVar("Shape", bound=Strict)


def validate(shape: type[Shape], raw: Mapping[str, Any]) -> Shape:
    """`raw` as `shape`. Raises Failure with the path of the first field at fault."""
    try:
        return shape.model_validate(raw)
    except ValidationError as error:
        raise _failure(shape, raw, error) from None


def _failure(shape: type[Strict], raw: Mapping[str, Any], error: ValidationError) -> Failure:
    # In a union, the branch whose types fit, then the one that went deepest, is the one the client meant.
    errors = error.errors(include_url=False)
    first = max(errors, key=lambda e: (not e["type"].endswith("_type"), len(_steps(raw, e))))
    steps = _steps(raw, first)
    param = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")
    kind, message = first["type"], first["msg"]
    if kind == "extra_forbidden":
        return _unknown(str(steps[-1]), param, list(shape.model_fields))
    if kind == "missing":
        return Failure("invalid_request", f"{param} is missing.", param=param)
    if kind in ("unsupported", "invalid_role"):
        code = "unsupported" if kind == "unsupported" else "invalid_request"
        return Failure(code, f"{param}: {message}.", param=param)
    if param == "n":
        return Failure("unsupported", "n: one choice is made a request; send n = 1 or several requests.", param="n")
    return Failure("invalid_request", f"{param}: {message[:1].lower()}{message[1:]}.", param=param)


def _steps(raw: Any, error: Any) -> list[str | int]:
    """The part of pydantic's location that leads through the client's JSON; names of union branches are dropped."""
    steps: list[str | int] = []
    here: Any = raw
    location = error["loc"]
    for position, step in enumerate(location):
        last = position == len(location) - 1
        if (isinstance(here, dict) and step in here) or (
            isinstance(here, list) and isinstance(step, int) and step < len(here)
        ):
            steps.append(step)
            here = here[step]
        elif last and error["type"] == "missing":
            steps.append(step)
    return steps


def _unknown(name: str, param: str, known: Sequence[str]) -> Failure:
    if param == name and name in UNSUPPORTED:
        return Failure("unsupported", f"{name} is not supported: {UNSUPPORTED[name]}.", param=param)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6) if param == name else []
    hint = f" Did you mean {near[0]}?" if near else " Remove it, or see the table of fields in docs/api.md."
    return Failure("unknown_field", f"{param[:200]} is not a field of this API.{hint}", param=param[:200])


def settings(body: SamplingFields, defaults: Settings, top_logprobs: int | None) -> tuple[Settings, frozenset[str]]:
    """The settings in force for `body`, and which of them the client sent."""
    given: dict[str, Any] = {}
    for name in (
        "temperature", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "parallel_tool_calls",
    ):  # fmt: skip
        if (value := getattr(body, name)) is not None:
            given[name] = (
                float(value) if isinstance(value, int) and name not in ("seed", "parallel_tool_calls") else value
            )
    if body.seed is not None:
        given["seed"] = body.seed % 2**64
    if body.top_k is not None:
        given["top_k"] = max(body.top_k, 0)
    if body.logit_bias is not None:
        given["logit_bias"] = {int(token): float(bias) for token, bias in body.logit_bias.items()}
    if body.stop is not None:
        given["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit is not None:
        given["max_tokens"] = limit
    if top_logprobs is not None:
        given["top_logprobs"] = top_logprobs
    return replace(defaults, **given), frozenset(given)


def chat_request(body: ChatBody, raw: Mapping[str, Any], *, id: str, key: str, defaults: Settings) -> TurnRequest:
    """A validated chat body as a turn. Raises Failure for fields that contradict each other."""
    if body.top_logprobs is not None and not body.logprobs:
        raise Failure("invalid_request", "top_logprobs needs logprobs: true.", param="top_logprobs")
    chosen, given = settings(body, defaults, (body.top_logprobs or 0) if body.logprobs else None)
    tools = declared_tools(raw.get("tools"))
    return TurnRequest(
        id=id,
        key=key,
        kind="chat",
        messages=normalise(body.messages),
        prompt=None,
        tools=tools,
        settings=chosen,
        stream=bool(body.stream),
        include_usage=_include_usage(body),
        session_id=body.session_id,
        context_tokens=body.context_tokens,
        constraint=_constraint(body),
        given=given,
        tools_off=body.tool_choice == "none",
    )


def completion_request(body: CompletionBody, *, id: str, key: str, defaults: Settings) -> TurnRequest:
    """A validated completion body as a turn."""
    chosen, given = settings(body, defaults, body.logprobs)
    prompt = body.prompt if isinstance(body.prompt, str) else tuple(body.prompt)
    if isinstance(prompt, tuple) and prompt and isinstance(prompt[0], str):
        prompt = prompt[0]
    return TurnRequest(
        id=id,
        key=key,
        kind="completion",
        messages=(),
        prompt=prompt,  # type: ignore[arg-type]
        tools=(),
        settings=chosen,
        stream=bool(body.stream),
        include_usage=_include_usage(body),
        context_tokens=body.context_tokens,
        given=given,
    )


def system_text(body: SessionBody) -> str | None:
    """The session's system message, None without one."""
    return None if body.system is None else join_text(body.system)


def _include_usage(body: OneTurn) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise Failure("invalid_request", "stream_options needs stream: true.", param="stream_options")
    return bool(body.stream_options.include_usage)


def _constraint(body: ChatBody) -> Constraint | None:
    forms = body.response_format
    wanted: Constraint | None = None
    if forms is not None and forms.type == "json_object":
        wanted = Constraint("json_object")
    if forms is not None and forms.type == "json_schema":
        if forms.json_schema is None:
            raise Failure("invalid_request", "response_format.json_schema is missing.", param="response_format")
        wanted = Constraint("json_schema", forms.json_schema.name, forms.json_schema.schema_)
    elif forms is not None and forms.json_schema is not None:
        raise Failure("invalid_request", "json_schema needs the type json_schema.", param="response_format")
    choice = body.tool_choice
    if choice is None or choice in ("auto", "none"):
        return wanted
    if wanted is not None:
        raise Failure(
            "unsupported", "A reply is either a call or structured text: drop response_format or tool_choice.",
            param="response_format",
        )  # fmt: skip
    return Constraint("call", choice.function.name if isinstance(choice, NamedChoice) else None)
