"""From a registered turn to one that can run: render, tokenise, measure. All of a turn's 400s come from here.

Runs on a small thread pool: a long prompt never holds the event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from carousel_server.failure import Failure
from carousel_server.limits import Limits
from carousel_server.messages import check_order
from carousel_server.service import Turn
from carousel_server.turn import Constraint, Message, PreparedTurn, Settings, Tool, TurnRequest

T = TypeVar("T")


class Tokens(Protocol):
    """What preparing needs of tokenizer.Tokenizer."""

    @property
    def valid_tokens(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...


class Rendering(Protocol):
    """What preparing needs of prompt.Rendered."""

    @property
    def tokens(self) -> tuple[int, ...]: ...

    @property
    def boundaries(self) -> tuple[int, ...]: ...


class Template(Protocol):
    """What preparing needs of prompt.PromptTemplate."""

    def render(
        self, messages: tuple[Message, ...], tools: tuple[Tool, ...], *, parallel: bool = True, first: int = 0
    ) -> Rendering: ...


Compile = Callable[[Constraint, tuple[Tool, ...], bool], Any]  # the last: parallel calls


class Preparer:
    """`threads` prompts at a time, and `waiting` more at most; one more gets 429."""

    def __init__(
        self, tokenizer: Tokens, template: Template, compile_grammar: Compile, *, threads: int = 2, waiting: int = 256
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.compile_grammar = compile_grammar
        self._room = threads + waiting
        self._inside = 0
        self._pool = ThreadPoolExecutor(threads, "prepare")

    async def run(self, work: Callable[[], T]) -> T:
        """`work` on the pool. Raises Failure queue_full when too much waits."""
        if self._inside >= self._room:
            raise Failure("queue_full", f"{self._inside} requests are being prepared; retry in a second.")
        self._inside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._inside -= 1

    async def turn(self, request: TurnRequest, turn: Turn, limits: Limits) -> PreparedTurn:
        """Raises Failure for everything that is wrong with the request itself."""
        return await self.run(lambda: self.prepare(request, turn, limits))

    def prepare(self, request: TurnRequest, turn: Turn, limits: Limits) -> PreparedTurn:
        """The same, on the caller's thread."""
        self.check_bias(turn.settings)
        tools = () if request.tools_off else turn.tools
        grammar = None
        messages: tuple[Message, ...] = ()
        boundaries: tuple[int, ...] = ()
        if request.kind == "completion":
            tokens = self._plain(request)
        else:
            check_order(turn.history, request.messages)
            constraint = _constraint(request, tools)
            messages = (*turn.history, *request.messages)
            parallel = turn.settings.parallel_tool_calls
            rendered = self.template.render(messages, tools, parallel=parallel, first=len(turn.history))
            tokens, boundaries = rendered.tokens, rendered.boundaries
            if constraint is not None:
                grammar = self.compile_grammar(constraint, tools, parallel)
        new = _output_tokens(request, turn, len(tokens), limits)
        return PreparedTurn(
            request=replace(request, tools=tools, settings=turn.settings),
            messages=messages,
            prompt_tokens=tokens,
            boundaries=boundaries,
            max_new_tokens=new,
            capacity_tokens=len(tokens) + new,
            rng=turn.rng,
            grammar=grammar,
        )

    def _plain(self, request: TurnRequest) -> tuple[int, ...]:
        if isinstance(request.prompt, tuple):
            _check_ids(request.prompt, self.tokenizer.valid_tokens, "prompt")
            return request.prompt
        return tuple(self.tokenizer.encode(request.prompt or ""))

    def check_bias(self, settings: Settings) -> None:
        """Raises Failure for a bias on what is no token."""
        _check_ids(tuple(settings.logit_bias), self.tokenizer.valid_tokens, "logit_bias")

    def close(self) -> None:
        """Wait for nothing; what runs is thrown away."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _check_ids(ids: Sequence[int], valid: int, param: str) -> None:
    for token in ids:
        if token >= valid:
            raise Failure("invalid_request", f"{param}: {token} is no token id; they end at {valid - 1}.", param=param)


def _constraint(request: TurnRequest, tools: tuple[Tool, ...]) -> Constraint | None:
    """What the reply must look like: what was asked for, or what strict tools ask for."""
    constraint = request.constraint
    if constraint is None:
        return Constraint("call", optional=True) if any(tool.strict for tool in tools) else None
    if constraint.kind == "call":
        if not tools:
            raise Failure("invalid_request", "tool_choice needs tools; declare them.", param="tool_choice")
        if constraint.name is not None and all(tool.name != constraint.name for tool in tools):
            names = ", ".join(tool.name for tool in tools)
            raise Failure(
                "invalid_request",
                f"tool_choice names {constraint.name}, which is not declared (declared: {names}).",
                param="tool_choice",
            )
    elif tools:
        raise Failure(
            "unsupported",
            "response_format cannot be enforced while tools may be called; send tool_choice none or no tools.",
            param="response_format",
        )
    return constraint


def _output_tokens(request: TurnRequest, turn: Turn, prompt: int, limits: Limits) -> int:
    left = turn.context_tokens - prompt
    if left < 1:
        raise Failure(
            "context_length_exceeded",
            f"The prompt has {prompt} tokens and the context {turn.context_tokens}, of which the reply needs at least "
            "one; shorten the messages.",
            param="messages" if request.kind == "chat" else "prompt",
            details={"prompt_tokens": prompt, "context_tokens": turn.context_tokens},
        )
    wanted = turn.settings.max_tokens
    if wanted is None:
        return min(limits.max_output_tokens, left)
    if "max_tokens" not in request.given:  # a session's default gives way to what is left
        return min(wanted, limits.max_output_tokens, left)
    if wanted > limits.max_output_tokens:
        raise Failure(
            "limits_exceeded",
            f"max_tokens is {wanted}; this server's limit is {limits.max_output_tokens}.",
            param="max_tokens",
        )
    if wanted > left:
        raise Failure(
            "context_length_exceeded",
            f"max_tokens is {wanted}, but {prompt} prompt tokens leave {left} of {turn.context_tokens}; ask for less.",
            param="max_tokens",
            details={"prompt_tokens": prompt, "context_tokens": turn.context_tokens},
        )
    return wanted
