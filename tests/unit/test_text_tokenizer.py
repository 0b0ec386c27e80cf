"""Text to ids and back."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import carousel_server
import pytest
from carousel_server.tokenizer import Tokenizer, TokenizerError
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

EMBEDDED = Path(carousel_server.__file__).parent / "embedded"
TOKENIZER = Tokenizer.load(EMBEDDED)
CONTROL = sorted(TOKENIZER.control_tokens)


def test_the_embedded_checkpoint_has_its_numbers() -> None:
    assert (TOKENIZER.valid_tokens, TOKENIZER.vocab_size) == (3057, 3072)
    assert TOKENIZER.stop_tokens == {TOKENIZER.control_tokens[name] for name in ("<|im_end|>", "<|endoftext|>")}


@given(st.lists(st.text() | st.sampled_from(CONTROL)).map("".join))
def test_literal_text_is_never_a_control_token_and_keeps_its_bytes(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert not set(ids) & set(TOKENIZER.control_tokens.values())
    assert b"".join(map(TOKENIZER.token_bytes, ids)).decode() == unicodedata.normalize("NFC", text)


def test_template_text_is_tokenised_as_transformers_does() -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(EMBEDDED)
    text = "".join(f"{name} a  {name}\n\nb{n}é" for n, name in enumerate(CONTROL))
    assert TOKENIZER.encode_template(text) == theirs(text)["input_ids"]


def test_bytes_of_special_tokens_are_empty_and_of_others_their_text() -> None:
    assert TOKENIZER.token_bytes(TOKENIZER.control_tokens["<|im_end|>"]) == b""
    assert TOKENIZER.token_bytes(TOKENIZER.control_tokens["<tool_call>"]) == b"<tool_call>"
    assert TOKENIZER.token_bytes(TOKENIZER.vocab_size + 5) == TOKENIZER.token_bytes(-1) == b""
    singles = {TOKENIZER.token_bytes(n) for n in range(TOKENIZER.valid_tokens)}
    assert all(bytes([byte]) in singles for byte in range(256))


def changed(tmp_path: Path, **parts: Any) -> Path:
    spec = json.loads((EMBEDDED / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**spec, **parts}))
    (tmp_path / "tokenizer_config.json").write_text((EMBEDDED / "tokenizer_config.json").read_text())
    return tmp_path


def test_without_configurations_the_end_token_comes_from_the_tokenizers_own(tmp_path: Path) -> None:
    found = Tokenizer.load(changed(tmp_path))
    assert found.stop_tokens == {TOKENIZER.control_tokens["<|im_end|>"]}
    assert found.vocab_size == found.valid_tokens


def test_a_tokenizer_that_cannot_be_honoured_is_refused(tmp_path: Path) -> None:
    spec = json.loads((EMBEDDED / "tokenizer.json").read_text())
    stripping = [{**spec["added_tokens"][0], "lstrip": True}]
    faults: list[tuple[dict[str, Any], str]] = [
        ({"decoder": {"type": "Metaspace"}}, "not a byte-level BPE"),
        ({"added_tokens": stripping}, "lstrip"),
        ({"added_tokens": []}, "no end-of-turn token"),
    ]
    for parts, says in faults:
        with pytest.raises(TokenizerError, match=says):
            Tokenizer.load(changed(tmp_path, **parts))
    (changed(tmp_path) / "config.json").write_text('{"vocab_size": 5}')
    with pytest.raises(TokenizerError, match="the model only 5"):
        Tokenizer.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 99999}')
    with pytest.raises(TokenizerError, match="99999"):
        Tokenizer.load(tmp_path)
