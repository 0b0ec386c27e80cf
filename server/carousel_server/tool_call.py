"""Finds the XML calls in a reply that arrives in any split; everything that is no call stays text, byte for byte.

A call is `<function=NAME>` with a declared name, behind `<tool_call>` or without it, whose block is closed
(call_body.py says where). Text inside a code fence or directly behind a backtick is an example. White space before a
call is dropped; so is prose behind one, but a block that is no call (an unknown name, a block that never ends) is
delivered even there, with what follows it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from carousel_server.call_body import CALL, TOOL, CallBody, held_from
from carousel_server.fence import Fence
from carousel_server.tool_value import arguments, properties
from carousel_server.turn import Tool

_OPENER = re.compile(f"{TOOL}|{CALL}")
_SPACE = " \t\r\n"


@dataclass(frozen=True)
class ParsedCall:
    """A complete call; its arguments are valid JSON."""

    name: str
    arguments: Mapping[str, Any]


class CallParser:
    """Feed it text; it returns text and calls in order. Joined text and calls do not depend on the split."""

    def __init__(self, tools: Iterable[Tool], *, parallel: bool = True) -> None:
        """Without `parallel` the first call ends the reply: `done` is set, and what follows is dropped."""
        self._schemas = {tool.name: tool.parameters for tool in tools}
        self._keys = {name: properties(schema, schema).keys() for name, schema in self._schemas.items()}
        self._parallel = parallel
        self._fence = Fence()
        self._buffer = ""  # not delivered yet, from where prose goes on
        self._pos = 0  # up to here the buffer is prose
        self._body: CallBody | None = None  # of the block that starts at the buffer's first character
        self._sent = 0  # characters of that block that were delivered already
        self._space = ""  # white space that a call would take with it
        self._out: list[str | ParsedCall] = []
        self._example = False  # behind an opener in a code span, so the `<function=` that follows it is part of it
        self._drop = False  # behind a call
        self.done = False

    def feed(self, text: str) -> list[str | ParsedCall]:
        """What is certain after `text`."""
        return self._run(text, final=False)

    def close(self) -> list[str | ParsedCall]:
        """The reply is complete: deliver all that is held."""
        found = self._run("", final=True)
        if self._space and not self._drop:
            found.append(self._space)
        self._space = ""
        return found

    def _run(self, text: str, *, final: bool) -> list[str | ParsedCall]:
        self._out = []
        if self._body:
            self._body.feed(text)
        else:
            self._buffer += text
        while not self.done and (self._block(self._body, final) if self._body else self._prose(final)):
            pass
        if self.done:
            self._buffer = ""
        return self._out

    def _prose(self, final: bool) -> bool:
        """Deliver prose up to what may be a block. True: there is one, or more to look at."""
        mark = _OPENER.search(self._buffer, self._pos)
        if mark:
            stop = mark.start()
        else:
            stop = len(self._buffer) if final else held_from(self._buffer, self._pos, (TOOL, CALL))
        self._skip(stop)
        if self._fence.open:
            self._skip(mark.end() if mark else len(self._buffer))
        elif mark and self._fence.last == "`":
            self._skip(mark.end(), example=True)
        elif mark:
            name = 0 if self._example else self._name_start(mark, final)
            self._deliver_prose(stop)
            if name is None:
                return False
            if name:
                self._open(name - stop)
                return True
            self._skip(mark.end() - stop)
        self._deliver_prose(self._pos)
        return mark is not None

    def _skip(self, stop: int, *, example: bool = False) -> None:
        """The buffer is prose up to `stop`."""
        text = self._buffer[self._pos : stop]
        self._fence.feed(text)
        self._example = example or (self._example and not text.strip())
        self._pos = stop

    def _name_start(self, mark: re.Match[str], final: bool) -> int | None:
        """Where a call's name starts; 0 when the opener is not followed by one, None when that is not known yet."""
        if mark[0] == CALL:
            return mark.end()
        rest = self._buffer[mark.end() :].lstrip(_SPACE)
        if rest.startswith(CALL):
            return len(self._buffer) - len(rest) + len(CALL)
        return None if CALL.startswith(rest) and not final else 0

    def _open(self, name: int) -> None:
        """Begin a block at the buffer's first character; `name` is where its name starts."""
        self._body = CallBody(self._fits)
        self._sent = 0
        text, self._buffer = self._buffer[name:], self._buffer[:name]
        self._body.feed(text)

    def _fits(self, name: str, key: str) -> bool:
        declared = self._keys.get(name)
        return not declared or key in declared

    def _block(self, body: CallBody, final: bool) -> bool:
        """Look at the open block. True: it ended, and prose goes on behind it."""
        if final:
            body.close()
        text = self._buffer + body.text
        known = body.name in self._schemas
        if body.failed:
            end = len(self._buffer) + body.settled
            self._fence.feed(text[:end])
            self._deliver_unless_call(text[self._sent : end])
        elif body.end is not None:
            end = len(self._buffer) + body.end
            self._fence.feed(CALL)  # the line goes on behind the block
            if known:
                self._call(body)
            else:
                self._deliver(text[self._sent : end])
                self._drop = False
        else:
            if final or not (known or self._drop or self._may_be_declared(body)):
                end = len(text) if final else len(self._buffer) + body.settled
                self._deliver(text[self._sent : end])
                self._sent = end
                self._drop = False
            return False
        self._body, self._buffer, self._pos = None, text[end:], 0
        return True

    def _may_be_declared(self, body: CallBody) -> bool:
        partial = body.text.strip()
        return body.name is None and any(name.startswith(partial) for name in self._schemas)

    def _call(self, body: CallBody) -> None:
        name = body.name or ""
        self._space = ""
        self._drop = True
        self._out.append(ParsedCall(name, arguments(body.values, self._schemas[name])))
        self.done = not self._parallel

    def _deliver_prose(self, stop: int) -> None:
        self._deliver_unless_call(self._buffer[:stop])
        self._buffer = self._buffer[stop:]
        self._pos -= stop

    def _deliver_unless_call(self, text: str) -> None:
        if not self._drop:
            self._deliver(text)

    def _deliver(self, text: str) -> None:
        text = self._space + text
        certain = text.rstrip(_SPACE)
        self._space = text[len(certain) :]
        if certain and self._out and isinstance(self._out[-1], str):
            self._out[-1] += certain
        elif certain:
            self._out.append(certain)
