"""Whether a text that arrives in any split stands inside a markdown code fence. Knows nothing of calls."""

import re

# A fence may stand in list items and quotes; the info string behind backticks holds none.
_OPENER = re.compile(r"[ \t]*(?:(?:>|[-*+]|\d{1,9}[.)])[ \t]+|>)*[ \t]*(`{3,}(?=[^`]*\Z)|~{3,})")
_CLOSER = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t\r]*\Z")


class Fence:
    """Follows the lines of a text. A fence that is never closed stays open."""

    def __init__(self) -> None:
        self._fence = ""  # the backticks or tildes that opened it
        self._line = ""
        self.last = ""  # the character fed last

    def feed(self, text: str) -> None:
        """Go on behind `text`."""
        if not text:
            return
        *lines, rest = text.split("\n")
        for line in lines:
            self._end(self._line + line)
            self._line = ""
        self._line += rest
        self.last = text[-1]

    @property
    def open(self) -> bool:
        """Is the next character inside a fence, the line that opens it included?"""
        return bool(self._fence or _OPENER.match(self._line))

    def _end(self, line: str) -> None:
        if not self._fence:
            opener = _OPENER.match(line)
            self._fence = opener[1] if opener else ""
        elif (closer := _CLOSER.match(line)) and closer[1].startswith(self._fence):
            self._fence = ""
