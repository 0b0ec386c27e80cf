"""Replies in the shapes of the OpenAI API: bodies and stream chunks from a turn's events. Pure; knows no socket."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import to_json

from carousel_server.turn import CallDelta, Completion, TextDelta, TokenLogprob, ToolCall, Usage

ARGUMENT_CHUNK = 64  # characters of one argument chunk


class Shape(Protocol):
    """What a writer needs to turn events into JSON objects."""

    include_usage: bool

    def opening(self) -> Iterator[dict[str, Any]]:
        """Chunks that come before any text."""

    def text(self, delta: TextDelta) -> dict[str, Any]: ...

    def call(self, delta: CallDelta) -> Iterator[dict[str, Any]]: ...

    def finish(self, completion: Completion) -> dict[str, Any]: ...

    def usage(self, usage: Usage) -> dict[str, Any]: ...

    def body(self, completion: Completion) -> dict[str, Any]: ...


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts; `cached_tokens` is always there."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def arguments_text(call: ToolCall) -> str:
    """A call's arguments as the JSON text that clients parse; `{}` without arguments."""
    return to_json(dict(call.arguments)).decode()


@dataclass
class ChatShape:
    """`chat.completion` and its chunks. `logprobs` says whether they were asked for."""

    id: str
    created: int
    model: str
    logprobs: bool
    include_usage: bool
    session_id: str | None = None

    def opening(self) -> Iterator[dict[str, Any]]:
        yield self._chunk({"role": "assistant", "content": ""})

    def text(self, delta: TextDelta) -> dict[str, Any]:
        return self._chunk({"content": delta.text}, logprobs=delta.logprobs)

    def call(self, delta: CallDelta) -> Iterator[dict[str, Any]]:
        head = {"name": delta.call.name, "arguments": ""}
        yield self._chunk(
            {"tool_calls": [{"index": delta.index, "id": delta.call.id, "type": "function", "function": head}]}
        )
        arguments = arguments_text(delta.call)
        for start in range(0, len(arguments), ARGUMENT_CHUNK):
            piece = {"arguments": arguments[start : start + ARGUMENT_CHUNK]}
            yield self._chunk({"tool_calls": [{"index": delta.index, "function": piece}]})

    def finish(self, completion: Completion) -> dict[str, Any]:
        return self._chunk({}, finish=completion.finish)

    def usage(self, usage: Usage) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage_object(usage)}

    def body(self, completion: Completion) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": completion.message.content or None, "refusal": None}
        if completion.message.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}
                for call in completion.message.tool_calls
            ]
        elif message["content"] is None:
            message["content"] = ""
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(completion.logprobs),
            "finish_reason": completion.finish,
        }
        body = {**self._head("chat.completion"), "choices": [choice], "usage": usage_object(completion.usage)}
        return body if self.session_id is None else {**body, "session_id": self.session_id}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(
        self, delta: dict[str, Any], *, finish: str | None = None, logprobs: Sequence[TokenLogprob] = ()
    ) -> dict[str, Any]:
        shown = self._logprobs(logprobs) if logprobs else None
        choice = {"index": 0, "delta": delta, "logprobs": shown, "finish_reason": finish}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        return {"content": [_chat_logprob(token) for token in tokens], "refusal": None}


def _chat_logprob(token: TokenLogprob) -> dict[str, Any]:
    top = [{"token": text, "logprob": value, "bytes": list(raw)} for text, raw, value in token.top]
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw), "top_logprobs": top}


@dataclass
class CompletionShape:
    """`text_completion`, whose chunks have the same shape as its body."""

    id: str
    created: int
    model: str
    logprobs: bool
    include_usage: bool
    offset: int = 0  # characters of the reply that stand before the next token

    def opening(self) -> Iterator[dict[str, Any]]:
        yield from ()

    def text(self, delta: TextDelta) -> dict[str, Any]:
        return self._chunk(delta.text, None, self._logprobs(delta.logprobs))

    def call(self, delta: CallDelta) -> Iterator[dict[str, Any]]:
        raise AssertionError(f"a plain completion cannot call {delta.call.name}")

    def finish(self, completion: Completion) -> dict[str, Any]:
        return self._chunk("", completion.finish, None)

    def usage(self, usage: Usage) -> dict[str, Any]:
        return {**self._head(), "choices": [], "usage": usage_object(usage)}

    def body(self, completion: Completion) -> dict[str, Any]:
        self.offset = 0
        shown = self._logprobs(completion.logprobs)
        body = self._chunk(completion.message.content, completion.finish, shown)
        return {**body, "usage": usage_object(completion.usage)}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}

    def _chunk(self, text: str, finish: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**self._head(), "choices": [choice]}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        shown: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            shown["tokens"].append(token.text)
            shown["token_logprobs"].append(token.logprob)
            shown["top_logprobs"].append({text: value for text, _, value in token.top})
            shown["text_offset"].append(self.offset)
            self.offset += len(token.text)
        return shown
