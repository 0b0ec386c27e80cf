"""Bytes of tokens to text, holding back a rune that is not complete yet. Knows nothing of tokens."""

import codecs


class Utf8Stream:
    """Its output, joined, equals `bytes.decode("utf-8", errors="replace")` of its whole input."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        """The text that is certain after `data`; at most three bytes stay held."""
        return self._decoder.decode(data)

    def close(self) -> str:
        """The held bytes as U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)
