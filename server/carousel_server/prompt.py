"""Messages to prompt tokens, through the checkpoint's own chat template, and where a prompt may be cut for the cache.

Thinking is disabled. Control tokens in the result are the template's own: see control_text.py.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carousel_server.control_text import Shield
from carousel_server.failure import Failure
from carousel_server.template import Template, TemplateRefusal
from carousel_server.tokenizer import Tokenizer
from carousel_server.turn import Message, Tool

_PROBE: dict[str, Any] = {"role": "user", "content": "."}


@dataclass(frozen=True)
class Rendered:
    """A rendered prompt: generation starts after its last token.

    `boundaries` are token counts, increasing, each > 0 and < len(tokens): after system and tools, before the last user
    message, before the generation prompt. A boundary stands directly before a control token of the template, so the
    tokens before it are the tokens of the text before it.
    """

    tokens: tuple[int, ...]
    boundaries: tuple[int, ...]
    text: str


class PromptTemplate:
    """A compiled template with its tokenizer. Safe to share between threads."""

    def __init__(self, template: Template, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, model_dir: Path, tokenizer: Tokenizer) -> "PromptTemplate":
        """Compile `chat_template.jinja`, or the template inside `tokenizer_config.json`.

        Raises FileNotFoundError without either, jinja2.TemplateSyntaxError for a broken one.
        """
        path = model_dir / "chat_template.jinja"
        if path.exists():
            return cls(Template(path.read_text(encoding="utf-8")), tokenizer)
        config = model_dir / "tokenizer_config.json"
        source = json.loads(config.read_text(encoding="utf-8")).get("chat_template") if config.exists() else None
        if not isinstance(source, str):
            raise FileNotFoundError(f"{model_dir} has no chat_template.jinja, and no template in tokenizer_config.json")
        return cls(Template(source), tokenizer)

    def render(
        self, messages: tuple[Message, ...], tools: tuple[Tool, ...], *, parallel: bool = True, first: int = 0
    ) -> Rendered:
        """Render a whole conversation. `first`: where the messages that the client sent with this request begin.

        `parallel` is offered to the template as `parallel_tool_calls`. Raises Failure `invalid_request` with the index
        of the message that the template refuses, counted from `first`.
        """
        plain = [_as_template_sees(message) for message in messages]
        definitions = [tool.definition for tool in tools]
        try:
            shield = Shield(self._tokenizer.control_tokens, [*plain, *definitions])
            variables = {"tools": shield.cover(definitions) or None, "parallel_tool_calls": parallel}
            turns = [shield.cover(message) for message in plain]
            text = self._text(turns, variables, generate=True)
            cuts = self._cuts(text, turns, variables)
        except TemplateRefusal as refusal:
            raise self._failure(refusal, turns, variables, first) from refusal
        except RecursionError as error:
            raise Failure(
                "invalid_request", "The messages or tools are nested too deeply.", param="messages"
            ) from error
        try:
            text.encode()
            tokens, boundaries = self._tokenise(text, cuts, shield)
        except UnicodeEncodeError as error:
            message = "A text holds a lone surrogate, which is no character; send valid Unicode."
            raise Failure("invalid_request", message, param="messages") from error
        return Rendered(tuple(tokens), tuple(n for n in boundaries if 0 < n < len(tokens)), shield.uncover(text))

    def _text(self, turns: Sequence[Any], variables: dict[str, Any], *, generate: bool) -> str:
        return self._template.render(
            {**variables, "messages": turns, "add_generation_prompt": generate, "enable_thinking": False}
        )

    def _cuts(self, text: str, turns: list[Any], variables: dict[str, Any]) -> set[int]:
        """Where `text` may be cut, in characters: each before a control token, and never dependent on what follows."""
        spans = self._tokenizer.control_spans(text)
        starts = [start for start, _ in spans]
        cuts = set()
        history = self._text(turns, variables, generate=False)
        marker = ""
        if text.startswith(history) and len(history) in starts:
            cuts.add(len(history))
            marker = next(text[start:end] for start, end in spans if start == len(history))
        last_user = max((n for n, turn in enumerate(turns) if turn["role"] == "user"), default=0)
        for head in {int(turns[0]["role"] == "system"), last_user}:
            other = self._text([*turns[:head], _PROBE], variables, generate=False)
            shared = _common_prefix(text, other)
            cuts |= set([s for s, e in spans if e <= shared and text[s:e] == (marker or text[s:e])][-1:])
        return cuts

    def _tokenise(self, text: str, cuts: Iterable[int], shield: Shield) -> tuple[list[int], list[int]]:
        tokens: list[int] = []
        boundaries: list[int] = []
        done = 0
        for start, end in self._tokenizer.control_spans(text):
            tokens += self._tokenizer.encode(shield.uncover(text[done:start]))
            if start in cuts:
                boundaries.append(len(tokens))
            tokens.append(self._tokenizer.control_tokens[text[start:end]])
            done = end
        return tokens + self._tokenizer.encode(shield.uncover(text[done:])), boundaries

    def _failure(self, refusal: TemplateRefusal, turns: list[Any], variables: dict[str, Any], first: int) -> Failure:
        index = None if refusal.limit else self._refused(turns, variables)
        if index is None or index < first:
            return Failure("invalid_request", f"These messages cannot be rendered: {refusal}", param="messages")
        name = f"messages[{index - first}]"
        return Failure("invalid_request", f"{name} cannot be rendered: {refusal}", param=name)

    def _refused(self, turns: list[Any], variables: dict[str, Any]) -> int | None:
        """The first message at which the template refuses, or None when it refuses the conversation as a whole.

        A refusal does not depend on what comes later, so bisection finds it; the user message that is added lets a
        template pass that wants one.
        """

        def refuses(count: int) -> bool:
            try:
                self._text([*turns[:count], _PROBE], variables, generate=False)
            except TemplateRefusal:
                return True
            return False

        low, high = 0, len(turns)
        if refuses(0) or not refuses(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if refuses(middle) else (middle, high)
        return high - 1


def _as_template_sees(message: Message) -> dict[str, Any]:
    """The message as the OpenAI shape has it, arguments as an object."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _common_prefix(left: str, right: str) -> int:
    """How many characters the two share from the start."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low
