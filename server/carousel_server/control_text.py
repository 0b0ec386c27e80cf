"""Keeps what a client wrote from being read as a control token. Knows no template and no token id.

The first character of every control token that a client's string writes out is replaced, while the template is
rendered, by a private-use character that no string of the conversation holds. So the control tokens that can be read
in the rendered text are those that the template wrote itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_PRIVATE = re.compile("[\ue000-\uf8ff]")


class Shield:
    """The substitution for one conversation; `cover` what goes into the template, `uncover` what came out."""

    def __init__(self, tokens: Iterable[str], values: Iterable[Any]) -> None:
        """`values` is everything of the client's that will be covered: JSON values."""
        self._pattern = _pattern(tuple(tokens))
        texts = [text for value in values for text in _strings(value)]
        self._needed = any(self._pattern.search(text) for text in texts)
        self._cover: dict[str, str] = {}
        if self._needed:
            used = {char for text in texts for char in _PRIVATE.findall(text)}
            free = (char for char in map(chr, range(0xE000, 0xF900)) if char not in used)
            self._cover = {first: next(free) for first in sorted({token[0] for token in tokens})}

    def cover(self, value: Any) -> Any:
        """A copy of a JSON value that no longer writes out a control token; the value itself when it never did."""
        if not self._needed:
            return value
        if isinstance(value, str):
            return self._pattern.sub(lambda match: self._cover[match[0]], value)
        if isinstance(value, Mapping):
            return {self.cover(key): self.cover(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.cover(item) for item in value]
        return value

    def uncover(self, text: str) -> str:
        """The client's own characters again."""
        for first, cover in self._cover.items():
            text = text.replace(cover, first)
        return text


def _pattern(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """The first character of a whole token, or of a token's beginning at the end of a string.

    The template may write the rest behind such a beginning: a key that ends in `<tool_call` is followed by `>`. White
    space behind it counts as the end, because templates trim.
    """
    whole = {re.escape(token[0]) + f"(?={re.escape(token[1:])})" for token in tokens}
    parts = {
        re.escape(token[0]) + rf"(?={re.escape(token[1:n])}\s*\Z)" for token in tokens for n in range(1, len(token))
    }
    return re.compile("|".join(sorted(whole | parts)) or r"(?!)")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
