"""What the engine must know of the tokenizer: how many ids exist, and which end a text. Loads no tokenizer."""

import json
from pathlib import Path
from typing import Any

from carousel_server.engine.config import CheckpointError, ModelConfig


def valid_tokens(folder: Path, config: ModelConfig) -> int:
    """Ids that the tokenizer knows; the embedding may be padded beyond. Without a tokenizer.json, the vocabulary."""
    raw = _read(folder / "tokenizer.json")
    if raw is None:
        return config.vocab
    try:
        vocab = raw["model"]["vocab"]
        ids = [*vocab.values(), *(added["id"] for added in raw.get("added_tokens", ()))]
        count = 1 + int(max(ids))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / 'tokenizer.json'}: no vocabulary found: {error!r}") from None
    if count > config.vocab:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'}: {count} ids, but vocab_size in config.json is {config.vocab}; "
            "the tokenizer belongs to another model"
        )
    return count


def stop_tokens(folder: Path, config: ModelConfig) -> frozenset[int]:
    """The end tokens of generation_config.json, else the config's."""
    raw = _read(folder / "generation_config.json") or {}
    value = raw.get("eos_token_id")
    ids = value if isinstance(value, list) else [config.reset_token if value is None else value]
    wrong = [i for i in ids if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < config.vocab]
    if wrong or not ids:
        raise CheckpointError(
            f"{folder / 'generation_config.json'}: eos_token_id: expected ids below {config.vocab}, found {value!r}"
        )
    return frozenset(ids)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw
