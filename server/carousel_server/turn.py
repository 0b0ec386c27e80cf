"""The types that every stage of a turn speaks in. No behaviour beyond derived values.

A turn goes routes -> registry -> prepare -> worker -> output -> response -> sessions; each arrow is one of these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class ToolCall:
    """A call as the template needs it: arguments are an object, never a JSON string."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """One message of a conversation, already normalised at the door."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True)
class Tool:
    """A declared function; `definition` is what the template prints, exactly as the client sent it."""

    name: str
    definition: Mapping[str, Any]

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of its arguments, empty when none was declared."""
        found = self.definition.get("function", {}).get("parameters")
        return found if isinstance(found, Mapping) else {}

    @property
    def strict(self) -> bool:
        """Must every call follow the schema, also where the model may as well write text?"""
        return bool(self.definition.get("function", {}).get("strict"))


@dataclass(frozen=True)
class Settings:
    """Sampling and output controls of one turn. Defaults are the server's."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None  # None: not asked for; 0: only the chosen token's
    max_tokens: int | None = None  # None: the server's default
    parallel_tool_calls: bool = True


@dataclass(frozen=True)
class RngState:
    """The whole RNG of a request: a Philox key and how many draws it has made."""

    seed: int  # 64 bits
    draws: int = 0


@dataclass(frozen=True)
class Constraint:
    """What a grammar must enforce. kind `call`: one of the tools must be called (exactly one if `name` is set).

    With `optional` text may stand before the calls or instead of them, and only calls of strict tools follow a schema.
    """

    kind: Literal["call", "json_object", "json_schema"]
    name: str | None = None
    schema: Mapping[str, Any] | None = None
    optional: bool = False


@dataclass(frozen=True)
class TurnRequest:
    """What the routes hand on: a validated client request, its history not yet rendered."""

    id: str  # request id: client-given or made by the registry
    key: str  # name of the API key that owns it, "" without keys
    kind: Literal["chat", "completion"]
    messages: tuple[Message, ...]  # with a session: only what follows its last committed turn
    prompt: str | tuple[int, ...] | None  # completions only
    tools: tuple[Tool, ...]
    settings: Settings
    stream: bool
    include_usage: bool
    session_id: str | None = None
    context_tokens: int | None = None
    constraint: Constraint | None = None
    given: frozenset[str] = frozenset()  # the Settings fields that the client sent; the others are the session's
    tools_off: bool = False  # tool_choice none: neither shown to the model nor parsed


@dataclass(frozen=True)
class PreparedTurn:
    """A turn that can run: rendered, tokenised, measured."""

    request: TurnRequest  # settings and tools are the effective ones: the session's where the request was silent
    messages: tuple[Message, ...]  # the whole history with this turn's messages
    prompt_tokens: tuple[int, ...]
    boundaries: tuple[int, ...]  # cache boundaries in tokens, increasing, each < len(prompt_tokens)
    max_new_tokens: int  # after every limit; > 0
    capacity_tokens: int  # rows that admission reserves: prompt + max_new_tokens
    rng: RngState
    grammar: Any = None  # compiled, opaque to all but grammar.py


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with its log probability, as the API shows it."""

    text: str
    raw: bytes
    logprob: float
    top: tuple[tuple[str, bytes, float], ...] = ()


@dataclass(frozen=True)
class Usage:
    """Token counts that the client sees."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Event: where the request is; becomes a comment line in a stream."""

    phase: Literal["queued", "prefill"]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Event: text that no later stage can take back."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class CallDelta:
    """Event: one complete call; the writer splits it into name and argument chunks."""

    index: int
    call: ToolCall


@dataclass(frozen=True)
class Completion:
    """Event, last: the reply is complete and its session state prepared; the writer must claim before it shows it."""

    message: Message  # what a session commits: the same text and calls as was streamed
    finish: FinishReason
    usage: Usage
    rng: RngState  # the state after the turn
    logprobs: tuple[TokenLogprob, ...] = ()  # of the whole reply, for JSON bodies


@dataclass(frozen=True)
class Failed:
    """Event, last: the turn ended without a reply. `code` is one of failure.py's."""

    code: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


Event = Progress | TextDelta | CallDelta | Completion | Failed
