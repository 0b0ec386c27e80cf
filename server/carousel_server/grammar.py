"""What a reply must look like, as masks over the next token. Compiled grammars are kept, within a byte limit.

llguidance does the work: it takes the grammar, and says for each state which tokens may follow.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import llguidance
import numpy as np
import torch

from carousel_server.call_grammar import call_rules
from carousel_server.failure import Failure
from carousel_server.tokenizer import Tokenizer
from carousel_server.turn import Constraint, Tool

CACHE_BYTES = 64 * 2**20
# Between two marks of JSON: enough to indent, and no way to write blanks until the tokens run out.
_WHITESPACE = r"[ \n\t]{0,32}"
_UNSUPPORTED = (
    "unimplemented",
    "unknown format",
    "not supported",
    "not present in a registry",
    "too ",
    "limit",
    "fuel",
)


class Matcher:
    """One reply's way through a grammar. Belongs to one thread at a time."""

    def __init__(self, matcher: Any, tokenizer: Tokenizer) -> None:
        self._matcher = matcher
        self._valid = tokenizer.valid_tokens
        self._vocab = tokenizer.vocab_size

    def mask(self) -> torch.Tensor:
        """bool [vocab_size], True where the token may follow; an end token is one when the reply may end here."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        allowed = np.unpackbits(bits, bitorder="little")[: self._vocab].astype(np.bool_)
        allowed[self._valid :] = False
        return torch.from_numpy(allowed)

    def accept(self, token: int) -> None:
        """Go on behind `token`, which the last mask allowed."""
        self._matcher.consume_token(token)
        self._check()

    @property
    def finished(self) -> bool:
        """The reply is complete: only an end token may follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().split("\n")[0]
            raise Failure("generation_failed", f"The grammar of the reply could not be followed: {reason}")


class Grammar:
    """A compiled grammar, immutable."""

    def __init__(self, matcher: Any, tokenizer: Tokenizer, nbytes: int) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self.nbytes = nbytes

    def start(self) -> Matcher:
        """A matcher at the beginning of a reply."""
        return Matcher(self._matcher.deep_copy(), self._tokenizer)


class GrammarCompiler:
    """Compiles for one tokenizer, from any thread; the least recently used grammars go when they exceed `max_bytes`."""

    def __init__(self, tokenizer: Tokenizer, *, max_bytes: int = CACHE_BYTES) -> None:
        self._tokenizer = tokenizer
        self._ends = sorted(tokenizer.stop_tokens)
        self._library = llguidance.LLTokenizer(tokenizer.source, n_vocab=tokenizer.vocab_size, eos_token=self._ends)
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def compile(self, constraint: Constraint, tools: Sequence[Tool], *, parallel: bool = True) -> Grammar:
        """Raises Failure: `unsupported` for a schema that cannot be enforced, `invalid_request` for a wrong one."""
        try:
            source = grammar_source(constraint, tools, self._tokenizer, parallel=parallel)
        except RecursionError as error:
            raise self._failure(constraint, tools, "it is nested too deeply") from error
        with self._lock:
            if source in self._kept:
                self._kept.move_to_end(source)
                return self._kept[source]
        if reason := self._wrong(source):
            raise self._failure(constraint, tools, reason)
        matcher = llguidance.LLMatcher(self._library, source, log_level=0)
        first = matcher.deep_copy()
        first.compute_bitmask()  # expressions are built here, and their limits are met here
        if first.is_error():
            raise self._failure(constraint, tools, first.get_error())
        grammar = Grammar(matcher, self._tokenizer, _size(source))
        with self._lock:
            self._keep(source, grammar)
        return grammar

    def _wrong(self, source: str) -> str:
        """Why a grammar is wrong, "" when it is not."""
        wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(source, self._library)
        return str(messages[0]) if wrong else ""

    def _failure(self, constraint: Constraint, tools: Sequence[Tool], reason: str) -> Failure:
        reason = re.split(r"\n\s*\d+ \| ", reason)[0].removeprefix("at ").split("failed to compile JSON schema: ")[-1]
        reason = reason.replace("Enable 'coerce_one_of' option to approximate oneOf with anyOf", "Use anyOf.")
        code = "unsupported" if any(word in reason.lower() for word in _UNSUPPORTED) else "invalid_request"
        param = "response_format.json_schema.schema"
        if constraint.kind == "call":
            param = next(
                (f"tools[{n}].function.parameters" for n, tool in enumerate(tools) if self._alone(constraint, tool)),
                "tools",
            )
        return Failure(code, f"The schema cannot be enforced: {' '.join(reason.split())}", param=param)

    def _alone(self, constraint: Constraint, tool: Tool) -> str:
        """Why this one tool cannot be enforced, "" when it can."""
        try:
            return self._wrong(grammar_source(replace(constraint, name=None), (tool,), self._tokenizer, parallel=False))
        except RecursionError as error:
            return str(error)

    def _keep(self, source: str, grammar: Grammar) -> None:
        if source in self._kept or grammar.nbytes > self._max_bytes:
            return
        self._kept[source] = grammar
        self.nbytes += grammar.nbytes
        while self.nbytes > self._max_bytes:
            self.nbytes -= self._kept.popitem(last=False)[1].nbytes


_compilers: WeakKeyDictionary[Tokenizer, GrammarCompiler] = WeakKeyDictionary()
_compilers_lock = threading.Lock()


def compile(constraint: Constraint, tools: Sequence[Tool], tokenizer: Tokenizer, *, parallel: bool = True) -> Grammar:
    """As GrammarCompiler.compile, with one compiler kept for each tokenizer. The first call builds it (about 1 s)."""
    with _compilers_lock:
        compiler = _compilers.get(tokenizer)
        if compiler is None:
            compiler = _compilers[tokenizer] = GrammarCompiler(tokenizer)
    return compiler.compile(constraint, tools, parallel=parallel)


def grammar_source(constraint: Constraint, tools: Sequence[Tool], tokenizer: Tokenizer, *, parallel: bool) -> str:
    """The grammar as llguidance reads it.

    kind `call`: calls only, exactly one if `name` is set; with `optional`, text and then calls, either may be missing.
    The JSON kinds: the JSON value, or calls if there are tools.
    """
    rules = []
    if constraint.kind == "call":
        tools = [tool for tool in tools if constraint.name in (None, tool.name)]
        if not tools:
            name = f" named {constraint.name!r}" if constraint.name else ""
            raise Failure(
                "invalid_request", f"tool_choice asks for a call, but no tool{name} is declared.", param="tool_choice"
            )
        parallel = parallel and constraint.name is None
        rules.append("start: TEXT? calls?" if constraint.optional else "start: calls")
    else:
        schema = constraint.schema if constraint.kind == "json_schema" else {"type": "object"}
        body = {**(schema or {}), "x-guidance": {"whitespace_pattern": _WHITESPACE}}
        rules += [f"start: json{' | calls' if tools else ''}", f"json: %json {json.dumps(body, ensure_ascii=False)}"]
    if tools:
        rules.append(call_rules(tools, tokenizer.control_tokens, parallel=parallel, optional=constraint.optional))
    source: str = llguidance.LLMatcher.grammar_from_lark("\n".join(rules))
    return source


def _size(source: str) -> int:
    """Bytes that a compiled grammar takes: measured 134 KB for 200 schemas of 20 properties, 1.4 KB of text each."""
    return 96 * 2**10 + 40 * len(source)
