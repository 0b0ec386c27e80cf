"""Where a call ends and where each of its values ends, in text that arrives in any split. Knows no types and no tools.

The text begins behind `<function=`. Values are written raw, so they may hold anything, the call's own marks included;
which mark is structure and which is part of a value is decided by these rules:

- A value starts behind `<parameter=KEY>` and runs to the next structural mark. It ends at the last `</parameter>`
  before that, or at the mark itself when there is none.
- `<parameter=` is structural behind the `</parameter>` of a value; or, where that is missing, at the start of a line
  (or in a value that has no line break) for a declared key that has no value yet. Any other opens a pair inside the
  value, and the next `</parameter>` closes that pair.
- `</function>` is structural behind `</parameter>`, on a line of its own or with nothing behind it on the line;
  elsewhere only when the call visibly ends: a tool mark or the end of the text follows.
- `<function=` with a parameter or an end behind it is the next call behind `</parameter>`, and a quoted call, up to its
  own `</function>`, inside a value.
- `</parameter` counts with up to 16 stray characters before its `>`, and without `>` at the end of a line.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

TOOL, END_TOOL, CALL, END_CALL = "<tool_call>", "</tool_call>", "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter"
MARKS = (TOOL, END_TOOL, CALL, END_CALL, PARAMETER, END_PARAMETER)

_MARK = re.compile("|".join(map(re.escape, MARKS)))
_NAME = re.compile(r"[^<>\n]*")
_DAMAGE = re.compile(r"[\w/=.-]{0,16}[ \t]*")
_SPACE = re.compile(r"\s*")
_REST_OF_LINE = re.compile(r"[ \t\r]*")


@dataclass
class _Value:
    key: str
    start: int
    close: tuple[int, int] | None = None  # the last </parameter> so far
    inner: bool = False  # that one closed a pair inside the value


class CallBody:
    """Feed it until it is `over`: `end` or `failed` is set.

    `end`: characters of its text that belong to the call. `failed`: something else than parameters follows the name, so
    it is no call. `name` is None until it is complete; `values` are raw, framing newlines included.
    """

    def __init__(self, fits: Callable[[str, str], bool]) -> None:
        """`fits(name, key)`: may a parameter of that key follow where the end of the value before is missing?"""
        self._fits = fits
        self.text = ""
        self.name: str | None = None
        self.values: list[tuple[str, str]] = []
        self.end: int | None = None
        self.failed = False
        self._pos = 0  # everything before it has been judged
        self._value: _Value | None = None
        self._pairs = 0  # <parameter= inside the value that wait for their end
        self._calls = 0  # <function= inside the value that wait for their end
        self._outside: int | None = 0  # only white space and tool marks since here; None inside a value
        self._after = 0  # end of the </parameter> that led outside
        self._merged = False  # that was `</parameterfunction>`: a </parameter> and a </function> in one

    def feed(self, text: str) -> None:
        """Go on behind `text`."""
        self.text += text
        self._scan(final=False)

    def close(self) -> None:
        """The text is complete: decide what waited for more."""
        self._scan(final=True)

    def _scan(self, *, final: bool) -> None:
        if self.name is None and not self._read_name():
            return
        while not self.over:
            mark = _MARK.search(self.text, self._pos)
            judged = mark.start() if mark else len(self.text) if final else held_from(self.text, self._pos, MARKS)
            if self._outside is not None and self.text[self._outside : judged].strip():
                self._outside = None
                if self._value is None:
                    self.failed = True
                    return
            if mark is None:
                self._pos = judged
                return
            after = self._judge(mark, final)
            self._pos = judged if after is None else after
            if after is None:
                return

    @property
    def over(self) -> bool:
        """Nothing more to feed."""
        return self.failed or self.end is not None

    @property
    def settled(self) -> int:
        """Characters of the text that surely belong to the call, if it is one; when `failed`, they hold no mark."""
        if self.name is None:
            return len(self.text)
        return self._pos if self._value is None or self._outside is None else self._after

    def _read_name(self) -> bool:
        end = _NAME.match(self.text).end()  # type: ignore[union-attr]
        if end == len(self.text):
            return False
        self.name = self.text[:end].strip()
        self._pos = self._outside = end + (self.text[end] == ">")
        return True

    def _judge(self, mark: re.Match[str], final: bool) -> int | None:
        """Take a mark into account. Where to go on; None: fails, or takes more text to judge it."""
        kind, start, end = mark[0], mark.start(), mark.end()
        if kind == PARAMETER:
            return self._parameter(start, end)
        if kind == END_PARAMETER:
            return self._end_parameter(start, end, final)
        if kind == CALL:
            return self._call(end, final)
        if kind == END_CALL:
            return self._end_call(start, end, final)
        if kind == END_TOOL and self._merged and self._outside is not None:
            self._finish(start, self._after)
        elif self._outside is not None and self._value is not None:
            self._outside = end
        elif self._value is None:
            self.failed = True
            return None
        return end

    def _parameter(self, start: int, end: int) -> int | None:
        stop = _NAME.match(self.text, end).end()  # type: ignore[union-attr]
        if stop == len(self.text):
            return None
        key = self.text[end:stop].strip().rstrip("=").rstrip()
        after = stop + (self.text[stop] == ">")
        if self._value is None:
            if not key:
                self.failed = True
                return None
            structural = True
        elif not key:
            self._outside = None
            return after
        else:
            missing_end = self._outside is None and (self._starts_line(start) or self._one_line(start))
            expected = missing_end and key not in self._keys() and self._fits(self.name or "", key)
            structural = not (self._pairs or self._calls) and (self._outside is not None or expected)
        if not structural:
            self._pairs += 1
            self._outside = None
            return after
        self._end_value(start)
        self._value = _Value(key, after)
        self._outside = None
        return after

    def _end_parameter(self, start: int, end: int, final: bool) -> int | None:
        stop = _DAMAGE.match(self.text, end).end()  # type: ignore[union-attr]
        if stop == len(self.text) and not final:
            return None
        if self._value is None:
            self.failed = True
            return None
        if stop < len(self.text) and self.text[stop] not in ">\n<":
            self._outside = None
            return end
        after = stop + (self.text[stop : stop + 1] == ">")
        inner = bool(self._pairs or self._calls)
        self._value.close, self._value.inner = (start, after), inner
        self._pairs = max(0, self._pairs - 1)
        self._outside = None if inner else after
        self._after = after
        self._merged = "function" in self.text[end:stop]
        return after

    def _call(self, end: int, final: bool) -> int | None:
        if self._value is None:
            self.failed = True
            return None
        like = self._looks_like_a_call(end, final)
        if like is None:
            return None
        if not like:
            self._outside = None
        elif self._outside is not None and not self._calls:
            self._finish(self._after, self._after)
        else:
            self._calls += 1
            self._outside = None
        return end

    def _end_call(self, start: int, end: int, final: bool) -> int | None:
        if self._value is None:
            self._finish(start, end)
            return end
        if self._calls:
            self._calls -= 1
            self._pairs = 0
            return end
        structural: bool | None = True
        if self._outside is None:
            structural = self._ends_here(end, final)
        elif not self._starts_line(start):
            structural = self._ends_line(end) or self._ends_here(end, final)
        if structural is None:
            return None
        if structural:
            self._finish(start, end)
        self._outside = None
        return end

    def _finish(self, stop: int, end: int) -> None:
        self._end_value(stop)
        self.end = end

    def _end_value(self, stop: int) -> None:
        """The value runs to `stop` at the latest."""
        value = self._value
        if value is None:
            return
        end = stop
        if value.close and not (value.inner and self.text[value.close[1] : stop].strip()):
            end = value.close[0]
        elif self._starts_line(stop):
            end = max(value.start, self.text.rfind("\n", 0, stop) + 1)
        self.values.append((value.key, self.text[value.start : end]))
        self._value = None

    def _keys(self) -> set[str]:
        return {key for key, _ in self.values} | ({self._value.key} if self._value else set())

    def _starts_line(self, pos: int) -> bool:
        line = self.text.rfind("\n", 0, pos)
        return line >= 0 and not self.text[line + 1 : pos].strip(" \t")

    def _one_line(self, pos: int) -> bool:
        return self._value is not None and self.text.find("\n", self._value.start, pos) < 0

    def _looks_like_a_call(self, pos: int, final: bool) -> bool | None:
        end = _NAME.match(self.text, pos).end()  # type: ignore[union-attr]
        if end == len(self.text):
            return False if final else None
        return self._follows(end + (self.text[end] == ">"), (PARAMETER, END_CALL), final)

    def _ends_here(self, pos: int, final: bool) -> bool | None:
        if final and not self.text[pos:].strip():
            return True
        return self._follows(pos, (END_TOOL, TOOL, CALL), final)

    def _ends_line(self, pos: int) -> bool:
        end = _REST_OF_LINE.match(self.text, pos).end()  # type: ignore[union-attr]
        return self.text[end : end + 1] == "\n"

    def _follows(self, pos: int, marks: Sequence[str], final: bool) -> bool | None:
        """Does one of `marks` stand at `pos`, white space aside? None: not decided yet."""
        start = _SPACE.match(self.text, pos).end()  # type: ignore[union-attr]
        if self.text.startswith(tuple(marks), start):
            return True
        undecided = not final and any(mark.startswith(self.text[start : start + len(mark)]) for mark in marks)
        return None if undecided else False


def held_from(text: str, pos: int, marks: Sequence[str]) -> int:
    """Where the tail of `text` starts that could still become one of `marks`; len(text) when none could."""
    start = text.rfind("<", max(pos, len(text) - max(map(len, marks)) + 1))
    return start if start >= 0 and any(mark.startswith(text[start:]) for mark in marks) else len(text)
