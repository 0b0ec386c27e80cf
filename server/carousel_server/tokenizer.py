"""Text to token ids and token ids to bytes, for the checkpoint's byte-level BPE.

Control tokens are the added tokens of `tokenizer.json`. `encode` never produces one from literal text: the BPE model
alone sees it. Only `encode_template`, meant for text that the chat template wrote, reads them.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import tokenizers


class Vocabulary(Protocol):
    """All that the way back from tokens to text needs; test engines bring their own."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, b"" for one that stands for none."""


class TokenizerError(ValueError):
    """The tokenizer's files are missing a part, or hold one that this server cannot honour."""


class Tokenizer:
    """A loaded tokenizer. Immutable, and safe to share between threads."""

    def __init__(self, source: str, *, stop_tokens: frozenset[int], vocab_size: int | None = None) -> None:
        """`source` is the text of a `tokenizer.json`; `vocab_size` the width of the logits, when rows are padded."""
        spec: dict[str, Any] = json.loads(source)
        if not _is_byte_level(spec):
            raise TokenizerError("tokenizer.json is not a byte-level BPE: its decoder must be ByteLevel")
        added: list[dict[str, Any]] = spec["added_tokens"]
        for token in added:
            if flags := [flag for flag in ("lstrip", "rstrip", "single_word", "normalized") if token[flag]]:
                raise TokenizerError(f"added token {token['content']!r} sets {', '.join(flags)}, which is unsupported")
        self.source = source
        self.control_tokens: Mapping[str, int] = {token["content"]: token["id"] for token in added}
        self._plain = tokenizers.Tokenizer.from_str(json.dumps({**spec, "added_tokens": []}))
        self._bytes = _token_bytes(spec["model"]["vocab"], added)
        self.valid_tokens = len(self._bytes)
        self.vocab_size = self.valid_tokens if vocab_size is None else vocab_size
        if self.vocab_size < self.valid_tokens:
            raise TokenizerError(f"tokenizer.json has {self.valid_tokens} ids, the model only {self.vocab_size}")
        if bad := sorted(token for token in stop_tokens if not 0 <= token < self.valid_tokens):
            raise TokenizerError(f"stop tokens {bad} are not in the vocabulary of {self.valid_tokens} ids")
        if not stop_tokens:
            raise TokenizerError(
                "no end-of-turn token: neither generation_config.json nor tokenizer_config.json names one"
            )
        self.stop_tokens = stop_tokens
        longest_first = sorted(self.control_tokens, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @classmethod
    def load(cls, model_dir: Path) -> "Tokenizer":
        """Read `tokenizer.json`, and the end tokens and the padded vocabulary size from the configurations beside it.

        Raises TokenizerError, OSError, or ValueError for broken JSON.
        """
        config = _read(model_dir / "config.json")
        return cls(
            (model_dir / "tokenizer.json").read_text(encoding="utf-8"),
            stop_tokens=_stop_tokens(model_dir),
            vocab_size=config.get("text_config", config).get("vocab_size"),
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a control token, whatever it looks like."""
        if not text:
            return []
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def control_spans(self, text: str) -> list[tuple[int, int]]:
        """Where control tokens are written in `text`: (start, end) in characters, left to right."""
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
        """The bytes of a token in a reply.

        Special control tokens (`<|im_end|>`) are b""; the others (`<tool_call>`, `<think>`) are text that a reply may
        hold and are their literal; so are ids outside the vocabulary b"".
        """
        return self._bytes[token] if 0 <= token < self.valid_tokens else b""


def _is_byte_level(spec: Mapping[str, Any]) -> bool:
    decoder = spec.get("decoder") or {}
    return spec["model"]["type"] == "BPE" and decoder.get("type") == "ByteLevel"


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _stop_tokens(model_dir: Path) -> frozenset[int]:
    ends = _read(model_dir / "generation_config.json").get("eos_token_id")
    tokens = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    name = _read(model_dir / "tokenizer_config.json").get("eos_token")
    name = name.get("content") if isinstance(name, dict) else name
    added = _read(model_dir / "tokenizer.json")["added_tokens"]
    return frozenset(tokens | {token["id"] for token in added if token["content"] == name})


def byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte, as character -> byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(rest)}


def _token_bytes(vocab: Mapping[str, int], added: list[dict[str, Any]]) -> list[bytes]:
    alphabet = byte_alphabet()
    size = 1 + max([*vocab.values(), *(token["id"] for token in added)])
    found = [b""] * size
    for text, token in vocab.items():
        try:
            found[token] = bytes([alphabet[char] for char in text])
        except KeyError as error:
            raise TokenizerError(f"token {token} {text!r} is not written in the byte-level alphabet") from error
    for control in added:
        found[control["id"]] = b"" if control["special"] else control["content"].encode()
    return found
