"""A tokenizer of bytes for the test engines: every byte is a token, and so is each piece of a script.

Answers what tokenizer.Tokenizer answers. The control tokens are those of the embedded checkpoint's template.
"""

import re
from collections.abc import Mapping

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
PIECES_FROM = 512
VOCAB = 65_536


class ByteVocabulary:
    """Bytes are ids 0 to 255, control tokens follow, pieces are numbered as they come and the oldest are reused."""

    def __init__(self) -> None:
        self.source = ""
        self.vocab_size = self.valid_tokens = VOCAB
        self.control_tokens: Mapping[str, int] = {text: 256 + n for n, text in enumerate(CONTROL)}
        self.stop_tokens = frozenset({self.control_tokens["<|im_end|>"], self.control_tokens["<|endoftext|>"]})
        self._control = re.compile("|".join(map(re.escape, CONTROL)))
        self._literal = {256 + n: text.encode() for n, text in enumerate(CONTROL) if not text.startswith("<|")}
        self._pieces: dict[int, bytes] = {}
        self._ids: dict[bytes, int] = {}
        self._next = PIECES_FROM

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a control token."""
        return list(text.encode())

    def control_spans(self, text: str) -> list[tuple[int, int]]:
        """Where control tokens are written: (start, end) in characters."""
        return [match.span() for match in self._control.finditer(text)]

    def encode_template(self, text: str) -> list[int]:
        """Ids of a text in which every control token that is written counts as one."""
        ids: list[int] = []
        done = 0
        for start, end in self.control_spans(text):
            ids += self.encode(text[done:start])
            ids.append(self.control_tokens[text[start:end]])
            done = end
        return ids + self.encode(text[done:])

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token in a reply; the end tokens have none."""
        if token < 256:
            return bytes((token,))
        return self._pieces.get(token) or self._literal.get(token, b"")

    def piece(self, content: bytes) -> int:
        """The id of a script's piece."""
        known = self._ids.get(content)
        if known is not None:
            return known
        token = self._next
        self._next = token + 1 if token + 1 < VOCAB else PIECES_FROM
        self._ids.pop(self._pieces.pop(token, b""), None)
        self._pieces[token], self._ids[content] = content, token
        return token
