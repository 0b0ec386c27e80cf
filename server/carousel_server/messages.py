"""The messages and tools a client may send, as the OpenAI API shapes them, and what they become. Knows no body."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError, from_json

from carousel_server.body import is_finite, json_type
from carousel_server.failure import Failure
from carousel_server.turn import Message, Tool, ToolCall

NAME = r"^[A-Za-z0-9_.-]{1,64}$"
ROLES = ("system", "developer", "user", "assistant", "tool")


class Strict(BaseModel):
    """Nothing is coerced, nothing is ignored; a field that is null counts as absent. To JSON, 1.0 is an integer."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _as_json_means_it(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                k: [*map(_whole, v)] if isinstance(v, list) else _whole(v) for k, v in value.items() if v is not None
            }
        return value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text_part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise PydanticCustomError("unsupported", "a part of type {kind} is not supported: send text", {"kind": kind})
    return part


class TextPart(Strict):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


Content = str | list[Annotated[TextPart, BeforeValidator(_text_part)]]


class Function(Strict):
    """The call inside a tool call; `arguments` as a JSON object, or a string that holds one."""

    name: str = Field(pattern=NAME)
    arguments: str | dict[str, Any]


class CallShape(Strict):
    """One call of an assistant message."""

    id: str = Field(min_length=1, max_length=128)
    type: Literal["function"] = "function"
    function: Function


class SystemShape(Strict):
    """Only as the first message."""

    role: Literal["system", "developer"]
    content: Content = ""


class UserShape(Strict):
    """What the user says."""

    role: Literal["user"]
    content: Content = ""


class AssistantShape(Strict):
    """An earlier reply."""

    role: Literal["assistant"]
    content: Content = ""
    tool_calls: list[CallShape] = Field(default_factory=list)


class ToolShape(Strict):
    """The result of a call."""

    role: Literal["tool"]
    content: Content = ""
    tool_call_id: str = Field(min_length=1, max_length=128)


def _role(value: Any) -> str | None:
    role = value.get("role") if isinstance(value, dict) else None
    return "system" if role == "developer" else role if isinstance(role, str) and role in ROLES else None


MessageShape = Annotated[
    Annotated[SystemShape, Tag("system")]
    | Annotated[UserShape, Tag("user")]
    | Annotated[AssistantShape, Tag("assistant")]
    | Annotated[ToolShape, Tag("tool")],
    Discriminator(
        _role,
        custom_error_type="invalid_role",
        custom_error_message=f"a message is an object whose role is one of {', '.join(ROLES)}",
    ),
]


class FunctionDeclaration(Strict):
    """A function the model may call; `parameters` is its JSON schema."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolShapeDeclaration(Strict):
    """A declared tool."""

    type: Literal["function"]
    function: FunctionDeclaration


def join_text(content: str | Sequence[TextPart]) -> str:
    """Text parts are joined without a separator, as the template does."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def normalise(shapes: Sequence[Any]) -> tuple[Message, ...]:
    """Client messages as the core keeps them. Raises Failure with the index of the message at fault."""
    return tuple(_message(index, shape) for index, shape in enumerate(shapes))


def _message(index: int, shape: Any) -> Message:
    text = join_text(shape.content)
    if isinstance(shape, SystemShape):
        return Message("system", text)
    if isinstance(shape, AssistantShape):
        return Message("assistant", text, tuple(_call(index, n, call) for n, call in enumerate(shape.tool_calls)))
    if isinstance(shape, ToolShape):
        return Message("tool", text, tool_call_id=shape.tool_call_id)
    return Message("user", text)


def _call(index: int, number: int, call: CallShape) -> ToolCall:
    param = f"messages[{index}].tool_calls[{number}].function.arguments"
    arguments: Any = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = from_json(arguments, allow_inf_nan=False)
        except ValueError as error:
            raise Failure("invalid_request", f"{param} is not JSON: {error}.", param=param) from None
        if not isinstance(arguments, dict):
            raise Failure("invalid_request", f"{param} is a JSON {json_type(arguments)}, not an object.", param=param)
    if not is_finite(arguments):
        raise Failure("invalid_request", f"{param} holds a number outside the range of JSON.", param=param)
    return ToolCall(call.id, call.function.name, arguments)


def declared_tools(raw: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """Validated declarations as the template prints them: exactly as sent. Raises Failure on a name used twice."""
    tools: list[Tool] = []
    for index, definition in enumerate(raw or ()):
        name = definition["function"]["name"]
        param = f"tools[{index}]"
        if any(tool.name == name for tool in tools):
            raise Failure("invalid_request", f"{param}: the function {name} is declared twice.", param=param)
        if not is_finite(definition):
            raise Failure("invalid_request", f"{param} holds a number outside the range of JSON.", param=param)
        tools.append(Tool(name, definition))
    return tuple(tools)


def check_order(history: Sequence[Message], new: Sequence[Message]) -> None:
    """The rules on roles over a whole conversation: `history` is committed, `new` is what the client sent.

    Raises Failure with the index in `new`: late or second system messages, system and assistant messages in a
    session's turn, results that answer no call, no user message at all.
    """
    open_calls = _open_calls(history)
    for index, message in enumerate(new):
        param = f"messages[{index}]"
        if history and message.role in ("system", "assistant"):
            raise Failure(
                "invalid_request",
                f"{param} has the role {message.role}; the session holds the conversation: send only new user "
                "messages or tool results.",
                param=param,
            )
        if message.role == "system" and index > 0:
            raise Failure(
                "invalid_request", f"{param} is a system message; only the first message may be.", param=param
            )
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise Failure(
                    "invalid_request",
                    f"{param} answers {message.tool_call_id!r}, which is no open call of the preceding assistant "
                    f"message (open: {', '.join(sorted(open_calls)) or 'none'}).",
                    param=f"{param}.tool_call_id",
                )
            open_calls.discard(message.tool_call_id)
        else:
            open_calls = {call.id for call in message.tool_calls}
    if not any(message.role == "user" for message in (*history, *new)):
        raise Failure("invalid_request", "There is no user message; send at least one.", param="messages")


def _open_calls(history: Sequence[Message]) -> set[str]:
    answered: set[str] = set()
    for message in reversed(history):
        if message.role == "tool" and message.tool_call_id:
            answered.add(message.tool_call_id)
        else:
            return {call.id for call in message.tool_calls} - answered
    return set()
