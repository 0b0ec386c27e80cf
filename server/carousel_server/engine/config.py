"""The checkpoint's config.json as typed, checked numbers. Knows no tensor.

A field whose usual default differs from the released model must be present; nothing is guessed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ATTENTION_NAMES = frozenset({"full_attention", "qwen_sparse_attention", "indexed_attention"})
LINEAR_NAME = "linear_attention"


class CheckpointError(Exception):
    """A checkpoint that cannot be served: which file, what was expected, what was found, what to do."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the text model. Units: heads, dims and tokens as counts; ids are token ids."""

    vocab: int
    hidden: int
    layers: tuple[Literal["linear", "attention"], ...]
    max_positions: int
    eps: float
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int  # rotated entries of a head, and of an index head
    theta: float
    delta_key_heads: int
    delta_value_heads: int
    delta_key_dim: int
    delta_value_dim: int
    delta_taps: int
    output_gate: Literal["sigmoid", "silu"]
    experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    streams: int
    mix_rank: int
    ngram_layers: tuple[int, ...]  # decoder layers, 0-indexed
    ngram_dim: int
    ngram_size: int
    ngram_heads: int  # for each n
    ngram_base: int
    ngram_multiple: int
    ngram_shards: int
    ngram_taps: int
    ngram_seed: int
    index_heads: int
    index_dim: int
    index_ratio: int
    index_blocks: int  # blocks that a query keeps
    mtp_layers: int
    reset_token: int  # the n-gram context's boundary: the text config's eos

    @property
    def delta_channels(self) -> int:
        """Width of a DeltaNet layer's convolution: q, k and v."""
        return 2 * self.delta_key_heads * self.delta_key_dim + self.delta_value_heads * self.delta_value_dim

    @property
    def delta_width(self) -> int:
        """Width of a DeltaNet layer's output before its projection."""
        return self.delta_value_heads * self.delta_value_dim

    @property
    def ngram_tables(self) -> int:
        """Hash heads of an n-gram layer."""
        return (self.ngram_size - 1) * self.ngram_heads

    @property
    def stream_width(self) -> int:
        """All streams of one token."""
        return self.streams * self.hidden


def read_config(folder: Path) -> ModelConfig:
    """Parse folder/config.json; CheckpointError names the field that is missing or wrong."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: not found; a model folder holds config.json and *.safetensors files") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON: {error}") from None
    return parse_config(raw, str(path))


def parse_config(raw: Any, source: str = "config.json") -> ModelConfig:
    """Check a parsed config.json. `source` names it in errors."""
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"{source}: expected a JSON object, found {type(raw).__name__}")
    text = raw.get("text_config", raw)
    kind = text.get("model_type") if isinstance(text, Mapping) else None
    if kind not in ("qwen4_exp", "qwen4_exp_text"):
        raise CheckpointError(f"{source}: model_type is {kind!r}; this engine runs qwen4_exp checkpoints only")
    field = _Fields(text, source)
    config = ModelConfig(
        vocab=field.count("vocab_size"),
        hidden=field.count("hidden_size"),
        layers=_layers(field),
        max_positions=field.count("max_position_embeddings"),
        eps=field.number("rms_norm_eps"),
        heads=field.count("num_attention_heads"),
        kv_heads=field.count("num_key_value_heads"),
        head_dim=field.count("head_dim"),
        rotary=_rotary(field),
        theta=_rope(field)["rope_theta"],
        delta_key_heads=field.count("linear_num_key_heads"),
        delta_value_heads=field.count("linear_num_value_heads"),
        delta_key_dim=field.count("linear_key_head_dim"),
        delta_value_dim=field.count("linear_value_head_dim"),
        delta_taps=field.count("linear_conv_kernel_dim"),
        output_gate=field.choice("output_gate_type", "sigmoid", "silu"),
        experts=field.count("num_experts"),
        experts_per_token=field.count("num_experts_per_tok"),
        expert_width=field.count("moe_intermediate_size"),
        shared_width=field.count("shared_expert_intermediate_size"),
        streams=field.count("hc_count"),
        mix_rank=field.count("hc_lowrank"),
        ngram_layers=tuple(sorted({i - 1 for i in field.ids("ple_layer_ids")})),
        ngram_dim=field.count("ple_embed_dim"),
        ngram_size=field.count("ngram_size"),
        ngram_heads=field.count("heads_per_ngram"),
        ngram_base=field.count("ngram_vocab_size_base"),
        ngram_multiple=field.count("make_ngram_vocab_size_divisible_by"),
        ngram_shards=field.count("split_ngram_parts"),
        ngram_taps=field.count("ple_conv_kernel_size"),
        ngram_seed=field.count("seed", 1234),
        index_heads=field.count("indexer_n_heads"),
        index_dim=field.count("indexer_head_dim"),
        index_ratio=field.count("indexer_compress_ratio"),
        index_blocks=field.count("indexer_budget") // field.count("indexer_compress_ratio"),
        mtp_layers=field.count("mtp_num_hidden_layers", 0, least=0),
        reset_token=field.ids("eos_token_id")[0],
    )
    _check(config, field)
    return config


class _Fields:
    """Typed access to the text config; every error names file, field, expected and found."""

    def __init__(self, text: Mapping[str, Any], source: str) -> None:
        self.text, self.source = text, source

    def fail(self, name: str, expected: str) -> CheckpointError:
        found = repr(self.text[name]) if name in self.text else "nothing"
        return CheckpointError(f"{self.source}: {name}: expected {expected}, found {found}")

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.text.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.fail(name, f"an integer of at least {least}")
        return value

    def number(self, name: str) -> float:
        value = self.text.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.fail(name, "a positive number")
        return float(value)

    def choice(self, name: str, *options: Any) -> Any:
        if self.text.get(name) not in options:
            raise self.fail(name, " or ".join(map(repr, options)))
        return self.text[name]

    def same(self, name: str, value: Any) -> None:
        """A field that may be absent but has only one supported value."""
        if name in self.text and self.text[name] != value:
            raise self.fail(name, f"{value!r} (nothing else is supported)")

    def ids(self, name: str) -> tuple[int, ...]:
        value = self.text.get(name)
        many = value if isinstance(value, list) else [value]
        if not many or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in many):
            raise self.fail(name, "an integer or a list of integers")
        return tuple(many)


def _layers(field: _Fields) -> tuple[Literal["linear", "attention"], ...]:
    names = field.text.get("layer_types")
    count = field.count("num_hidden_layers")
    if not isinstance(names, list) or len(names) != count:
        raise field.fail("layer_types", f"a list of {count} names (num_hidden_layers)")
    unknown = sorted({str(n) for n in names} - ATTENTION_NAMES - {LINEAR_NAME})
    if unknown:
        raise field.fail("layer_types", f"{LINEAR_NAME} or one of {', '.join(sorted(ATTENTION_NAMES))}")
    return tuple("linear" if n == LINEAR_NAME else "attention" for n in names)


def _rope(field: _Fields) -> dict[str, float]:
    rope = field.text.get("rope_parameters")
    if not isinstance(rope, Mapping):
        raise field.fail("rope_parameters", "an object with rope_theta and partial_rotary_factor")
    if rope.get("rope_type", "default") != "default":
        raise field.fail("rope_parameters", "rope_type 'default' (long-context scaling is not supported)")
    # some checkpoints keep the factor beside rope_parameters
    factor = {"partial_rotary_factor": field.text.get("partial_rotary_factor")}
    inner = _Fields({**factor, **rope}, f"{field.source}: rope_parameters")
    return {name: inner.number(name) for name in ("rope_theta", "partial_rotary_factor")}


def _rotary(field: _Fields) -> int:
    rotary = int(field.count("head_dim") * _rope(field)["partial_rotary_factor"])
    if rotary < 2 or rotary % 2 or rotary > min(field.count("head_dim"), field.count("indexer_head_dim")):
        raise field.fail("rope_parameters", "an even number of rotated dims that fits head_dim and indexer_head_dim")
    return rotary


def _check(config: ModelConfig, field: _Fields) -> None:
    """Relations between fields, and switches that this engine does not have."""
    for name, value in (
        ("attention_bias", False),
        ("norm_topk_prob", True),
        ("tie_word_embeddings", False),
        ("hidden_act", "silu"),
        ("indexer_kv_heads", 1),
        ("mtp_use_dedicated_embeddings", False),
        ("mamba_ssm_dtype", "float32"),
    ):
        field.same(name, value)
    wrong: tuple[tuple[bool, str, str], ...] = (
        (config.heads % config.kv_heads != 0, "num_attention_heads", "a multiple of num_key_value_heads"),
        (config.delta_value_heads % config.delta_key_heads != 0, "linear_num_value_heads", "a multiple of key heads"),
        (config.experts_per_token > config.experts, "num_experts_per_tok", f"at most num_experts {config.experts}"),
        (config.index_blocks < 1, "indexer_budget", "at least indexer_compress_ratio"),
        (config.ngram_dim % config.ngram_tables != 0, "ple_embed_dim", f"a multiple of {config.ngram_tables} heads"),
        (config.mtp_layers > 1, "mtp_num_hidden_layers", "0 or 1"),
        (config.ngram_size < 2, "ngram_size", "at least 2"),
        (
            any(not 0 <= i < len(config.layers) or config.layers[i] != "linear" for i in config.ngram_layers),
            "ple_layer_ids",
            "1-indexed linear_attention layers",
        ),
        (config.reset_token >= config.vocab, "eos_token_id", f"an id below vocab_size {config.vocab}"),
    )
    for failed, name, expected in wrong:
        if failed:
            raise field.fail(name, expected)
