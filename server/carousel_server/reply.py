"""Selected tokens to what the client sees: bytes, then text, then stop strings, then calls, each stage once.

What a stream sends, what a JSON body holds and what a session commits are this one object's output.
"""

import secrets
from typing import Literal

from carousel_server.engine.protocol import Selected
from carousel_server.stop import StopMatcher
from carousel_server.tokenizer import Vocabulary
from carousel_server.tool_call import CallParser, ParsedCall
from carousel_server.turn import CallDelta, FinishReason, Message, TextDelta, TokenLogprob, Tool, ToolCall
from carousel_server.utf8 import Utf8Stream


class Reply:
    """Feed it every token that counts as output, the end-of-turn token included, until `finish` is set; then close it.

    `finish` is set by `feed` when a stop string is complete, the byte limit is reached, or, without `parallel`, a call
    is complete; by `close` always. `raw_bytes` are the bytes of the tokens so far, never more than `max_bytes`.
    Concatenated, the texts of all TextDelta are `message.content`. With `logprobs` every token is in one TextDelta.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        tools: tuple[Tool, ...] = (),
        parse_calls: bool = True,
        stop: tuple[str, ...] = (),
        max_bytes: int,
        parallel: bool = True,
        logprobs: bool = False,
        call_ids: str | None = None,
    ) -> None:
        """Without `parse_calls`, or without tools, XML stays text. `call_ids` makes ids repeatable: `call_<it>_0`."""
        self._vocabulary = vocabulary
        self._utf8 = Utf8Stream()
        self._stop = StopMatcher(stop)
        self._parser = CallParser(tools, parallel=parallel) if parse_calls and tools else None
        self._max_bytes = max_bytes
        self._want_logprobs = logprobs
        self._call_ids = call_ids
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []
        self._logprobs: list[TokenLogprob] = []
        self._unsent = 0  # logprobs at the end of that list which no delta carries yet
        self.raw_bytes = 0
        self.finish: FinishReason | None = None

    def feed(self, selected: Selected) -> list[TextDelta | CallDelta]:
        """What is certain after this token. No token may follow once `finish` is set."""
        if self.finish is not None:
            raise ValueError(f"the reply has finished with {self.finish!r}; no token may follow")
        data = self._vocabulary.token_bytes(selected.token)
        if self._want_logprobs:
            self._logprobs.append(self._logprob(selected, data))
            self._unsent += 1
        data = data[: self._max_bytes - self.raw_bytes]
        self.raw_bytes += len(data)
        deltas = self._pass(self._stop.feed(self._utf8.feed(data)))
        if self._stop.found:
            self.finish = "tool_calls" if self._calls else "stop"
        elif self._parser and self._parser.done:
            self.finish = "tool_calls"
        elif self.raw_bytes >= self._max_bytes:
            self.finish = "length"
        return deltas

    def close(self, reason: Literal["stop", "length"] = "stop") -> list[TextDelta | CallDelta]:
        """Flush every stage in order and fix `finish`; `reason` is why the tokens ended, unless `finish` says it."""
        text = "" if self._stop.found else self._stop.feed(self._utf8.close())
        deltas = self._pass(text + self._stop.close())
        if self._parser:
            deltas += self._deltas(self._parser.close())
        if self._unsent:
            deltas.append(self._text(""))
        if self._stop.found or (self._parser and self._parser.done):
            reason = "stop"
        elif self.finish is not None:
            reason = "length" if self.finish == "length" else "stop"
        self.finish = "tool_calls" if self._calls and reason == "stop" else reason
        return deltas

    @property
    def message(self) -> Message:
        """The assistant's message, complete after `close`."""
        return Message("assistant", "".join(self._texts), tuple(self._calls))

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """One for each token fed, when asked for."""
        return tuple(self._logprobs)

    def _pass(self, text: str) -> list[TextDelta | CallDelta]:
        return self._deltas(self._parser.feed(text) if self._parser else [text] if text else [])

    def _deltas(self, parts: list[str | ParsedCall]) -> list[TextDelta | CallDelta]:
        return [self._text(part) if isinstance(part, str) else self._call(part) for part in parts]

    def _text(self, text: str) -> TextDelta:
        first = len(self._logprobs) - self._unsent
        self._unsent = 0
        self._texts.append(text)
        return TextDelta(text, tuple(self._logprobs[first:]))

    def _call(self, parsed: ParsedCall) -> CallDelta:
        index = len(self._calls)
        name = secrets.token_hex(12) if self._call_ids is None else f"{self._call_ids}_{index}"
        self._calls.append(ToolCall(f"call_{name}", parsed.name, parsed.arguments))
        return CallDelta(index, self._calls[-1])

    def _logprob(self, selected: Selected, data: bytes) -> TokenLogprob:
        if selected.logprob is None:
            raise ValueError("logprobs were asked for, but the engine gave none")
        top = []
        for token, logprob in selected.top:
            raw = self._vocabulary.token_bytes(token)
            top.append((raw.decode(errors="replace"), raw, logprob))
        return TokenLogprob(data.decode(errors="replace"), data, selected.logprob, tuple(top))
