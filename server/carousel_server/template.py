"""A checkpoint's jinja template, compiled once in a sandbox with limits. Knows nothing of messages or tokens."""

import json
import math
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS = 64 * 2**20
MAX_SECONDS = 10.0
_LOOK_AT_CLOCK_EVERY = 256  # attribute look-ups; one costs about 1 us


class TemplateRefusal(Exception):
    """The template raised, or does not fit what it was given. `limit`: it ran into a limit of the sandbox instead."""

    def __init__(self, message: str, *, limit: bool = False) -> None:
        super().__init__(message)
        self.limit = limit


class Template:
    """Renders in any thread. What it writes is what transformers' `apply_chat_template` writes."""

    def __init__(self, source: str, *, max_characters: int = MAX_CHARACTERS, max_seconds: float = MAX_SECONDS) -> None:
        """Raises jinja2.TemplateSyntaxError."""
        self._sandbox = _Sandbox(max_characters, max_seconds)
        self._template = self._sandbox.from_string(source)
        self._max_characters = max_characters

    def render(self, variables: Mapping[str, Any]) -> str:
        """The rendered text, or TemplateRefusal with what the template said."""
        self._sandbox.start()
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(variables):
                parts.append(part)
                size += len(part)
                if size > self._max_characters:
                    raise _OverLimit(f"wrote more than {self._max_characters} characters")
        except _OverLimit as error:
            raise TemplateRefusal(f"the chat template {error}", limit=True) from error
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise TemplateRefusal(str(error)) from error
        except RecursionError as error:
            raise TemplateRefusal("the conversation is nested too deeply to render") from error
        return "".join(parts)


class _OverLimit(Exception):
    pass


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also stops a template that runs too long or multiplies a string: each look-up and each call passes here."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, max_characters: int, max_seconds: float) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._max_characters = max_characters
        self._max_seconds = max_seconds
        self._running = threading.local()
        self.filters["tojson"] = _tojson
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def start(self) -> None:
        """Begin a rendering in this thread."""
        self._running.steps = 0
        self._running.deadline = time.monotonic() + self._max_seconds

    def _step(self, steps: int = 1) -> None:
        # Constant folding calls the hooks while a template is compiled, before any rendering.
        self._running.steps = getattr(self._running, "steps", 0) + steps
        if self._running.steps >= _LOOK_AT_CLOCK_EVERY:
            self._running.steps = 0
            if time.monotonic() > getattr(self._running, "deadline", math.inf):
                raise _OverLimit(f"ran for more than {self._max_seconds:g} s")

    def getattr(self, obj: Any, attribute: str) -> Any:
        self._step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self._step()
        return super().getitem(obj, argument)

    def call(*args: Any, **kwargs: Any) -> Any:
        args[0]._step(_LOOK_AT_CLOCK_EVERY)  # it may be range(), and the loop over it has no hook
        return ImmutableSandboxedEnvironment.call(*args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._step()
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**" and not (numbers and abs(left) <= 1e6 and abs(right) <= 16):
            raise _OverLimit("raises a number beyond 1e6 or to a power beyond 16")
        if operator == "*" and not numbers:
            text, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(times, int) and len(text) * times > self._max_characters:
                raise _OverLimit(f"repeats a text to more than {self._max_characters} characters")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; here it writes what it holds."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(_format: str) -> NoReturn:
    raise jinja2.TemplateError("The template asks for the date; a prompt that changes with the clock is not supported.")
