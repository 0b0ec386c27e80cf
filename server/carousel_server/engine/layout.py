"""Every tensor a checkpoint must hold, with its shape and types. Knows no file."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from carousel_server.engine.config import ModelConfig

Part = Literal[
    "embedding",
    "head",
    "hyper-connections",
    "DeltaNet",
    "attention",
    "router and shared expert",
    "routed experts",
    "n-gram table",
    "n-gram layer",
    "draft head",
    "draft head experts",
]
TEXT = "model.language_model."
FLOATS = ("F32", "BF16")
FP8 = ("F8_E4M3",)
FP8_BLOCK = 128


@dataclass(frozen=True)
class Expected:
    """One tensor: its shape, the types it may have, and the part of the model it belongs to."""

    shape: tuple[int, ...]
    part: Part
    dtypes: tuple[str, ...] = FLOATS


@dataclass(frozen=True)
class Layout:
    """Which of the release layouts a checkpoint has."""

    fp8_experts: bool
    fp8_ngram: bool
    mtp: bool

    @property
    def name(self) -> str:
        """For people."""
        experts = "FP8 experts, one tensor each" if self.fp8_experts else "fused experts"
        return (
            f"{experts}, {'FP8' if self.fp8_ngram else 'unscaled'} n-gram table, {'' if self.mtp else 'no '}draft head"
        )


def detect(config: ModelConfig, names: Collection[str]) -> Layout:
    """The layout that the names speak of; whether it is complete is for the check."""
    return Layout(
        fp8_experts=any(".mlp.experts." in n and n.endswith(".weight_scale_inv") for n in names),
        fp8_ngram=any(n.endswith(".ngram_embedding.weight_scale") for n in names),
        mtp=config.mtp_layers > 0 and any(n.startswith("mtp.") for n in names),
    )


def ignored(name: str, config: ModelConfig) -> bool:
    """Tensors that a checkpoint may hold and the text model has no use for."""
    return (
        name.startswith(("model.visual.", "visual."))
        or "hyper_connection_mixer.block_inject_weight" in name
        or (name.startswith("mtp.") and config.mtp_layers == 0)
    )


def expected(config: ModelConfig, layout: Layout) -> dict[str, Expected]:
    """name -> what it must be, for the whole checkpoint."""
    out = {
        f"{TEXT}embed_tokens.weight": Expected((config.vocab, config.hidden), "embedding"),
        "lm_head.weight": Expected((config.vocab, config.hidden), "head"),
    }
    _mixer(out, config, f"{TEXT}hyper_connection_mixer", "hyper-connections", inject=False)
    for i, kind in enumerate(config.layers):
        prefix = f"{TEXT}layers.{i}"
        _layer(out, config, prefix, kind, layout.fp8_experts)
        if i in config.ngram_layers:
            _ngram(out, config, f"{prefix}.ple", layout.fp8_ngram)
    if layout.mtp:
        head: dict[str, Expected] = {}
        _layer(head, config, "mtp.layers.0", "attention", layout.fp8_experts)
        _mixer(head, config, "mtp.hyper_connection_mixer", "draft head", inject=False)
        square = (config.hidden, config.hidden)
        head["mtp.fc_embedding.weight"] = head["mtp.fc_hidden.weight"] = Expected(square, "draft head")
        head["mtp.pre_fc_norm_embedding.weight"] = Expected((config.hidden,), "draft head")
        head["mtp.pre_fc_norm_hidden.weight"] = Expected((config.stream_width,), "draft head")
        for name, one in head.items():
            part: Part = "draft head experts" if one.part == "routed experts" else "draft head"
            out[name] = Expected(one.shape, part, one.dtypes)
    return out


def _layer(out: dict[str, Expected], c: ModelConfig, prefix: str, kind: str, fp8: bool) -> None:
    _mixer(out, c, f"{prefix}.attn_hyper_connection", "hyper-connections")
    _mixer(out, c, f"{prefix}.mlp_hyper_connection", "hyper-connections")
    (_delta if kind == "linear" else _attention)(out, c, prefix)
    p, shared = f"{prefix}.mlp", (c.shared_width, c.hidden)
    for name, shape in (
        ("gate", (c.experts, c.hidden)),
        ("shared_expert.gate_proj", shared),
        ("shared_expert.up_proj", shared),
        ("shared_expert.down_proj", (c.hidden, c.shared_width)),
        ("shared_expert_gate", (1, c.hidden)),
    ):
        out[f"{p}.{name}.weight"] = Expected(shape, "router and shared expert")
    if not fp8:
        out[f"{p}.experts.gate_up_proj"] = Expected((c.experts, 2 * c.expert_width, c.hidden), "routed experts")
        out[f"{p}.experts.down_proj"] = Expected((c.experts, c.hidden, c.expert_width), "routed experts")
        return
    for e in range(c.experts):
        for name in ("gate", "up", "down"):
            shape = (c.hidden, c.expert_width) if name == "down" else (c.expert_width, c.hidden)
            blocks = (-(-shape[0] // FP8_BLOCK), -(-shape[1] // FP8_BLOCK))
            out[f"{p}.experts.{e}.{name}_proj.weight"] = Expected(shape, "routed experts", FP8)
            out[f"{p}.experts.{e}.{name}_proj.weight_scale_inv"] = Expected(blocks, "routed experts")


def _mixer(out: dict[str, Expected], c: ModelConfig, p: str, part: Part, inject: bool = True) -> None:
    wide = c.stream_width
    out[f"{p}.hc_norm.weight"] = Expected((wide,), part)
    out[f"{p}.input_mix_weight_down.weight"] = Expected((c.mix_rank, wide), part)
    out[f"{p}.input_mix_weight_up.weight"] = Expected((wide, c.mix_rank), part)
    if inject:
        out[f"{p}.block_inject_weight.weight"] = Expected((c.streams, wide), part)


def _delta(out: dict[str, Expected], c: ModelConfig, prefix: str) -> None:
    heads, channels, width = c.delta_value_heads, c.delta_channels, c.delta_width
    for name, shape in (
        ("in_proj_qkv.weight", (channels, c.hidden)),
        ("in_proj_z.weight", (width, c.hidden)),
        ("in_proj_a.weight", (heads, c.hidden)),
        ("in_proj_b.weight", (heads, c.hidden)),
        ("out_proj.weight", (c.hidden, width)),
        ("conv1d.weight", (channels, 1, c.delta_taps)),
        ("A_log", (heads,)),
        ("dt_bias", (heads,)),
        ("norm.weight", (c.delta_value_dim,)),
    ):
        out[f"{prefix}.linear_attn.{name}"] = Expected(shape, "DeltaNet")


def _attention(out: dict[str, Expected], c: ModelConfig, prefix: str) -> None:
    for name, shape in (
        ("q_proj", (2 * c.heads * c.head_dim, c.hidden)),
        ("k_proj", (c.kv_heads * c.head_dim, c.hidden)),
        ("v_proj", (c.kv_heads * c.head_dim, c.hidden)),
        ("o_proj", (c.hidden, c.heads * c.head_dim)),
        ("q_norm", (c.head_dim,)),
        ("k_norm", (c.head_dim,)),
        ("indexer.index_qk_proj", ((c.index_heads + 1) * c.index_dim, c.hidden)),
        ("indexer.q_layernorm", (c.index_dim,)),
        ("indexer.k_layernorm", (c.index_dim,)),
    ):
        out[f"{prefix}.self_attn.{name}.weight"] = Expected(shape, "attention")


def _ngram(out: dict[str, Expected], c: ModelConfig, p: str, fp8: bool) -> None:
    wide = c.stream_width
    for name, shape in (
        ("key_proj", (wide, c.ngram_dim)),
        ("value_proj", (c.hidden, c.ngram_dim)),
        ("norm_key", (wide,)),
        ("norm_query", (wide,)),
        ("norm_conv", (wide,)),
        ("conv1d", (wide, 1, c.ngram_taps)),
    ):
        out[f"{p}.{name}.weight"] = Expected(shape, "n-gram layer")
    embedding = f"{p}.ple_embedding"
    out[f"{embedding}.layer_multipliers"] = Expected((c.ngram_size,), "n-gram table", ("I64",))
    for name in ("ngram_heads_vocab_sizes", "ngram_heads_offsets"):
        out[f"{embedding}.{name}"] = Expected((c.ngram_tables,), "n-gram table", ("I64",))
    position = c.ngram_layers.index(int(p.split(".")[-2]))
    rows = sum(hash_sizes(c, position))
    rows = -(-rows // c.ngram_multiple) * c.ngram_multiple
    shard = (rows // c.ngram_shards, c.ngram_dim // c.ngram_tables)
    for i in range(c.ngram_shards):
        name = f"{embedding}.ngram_embedding.shard_{i}.weight"
        out[name] = Expected(shard, "n-gram table", FP8 if fp8 else FLOATS)
    if fp8:
        out[f"{embedding}.ngram_embedding.weight_scale"] = Expected((1,), "n-gram table")


def hash_sizes(c: ModelConfig, position: int) -> tuple[int, ...]:
    """Table size of each hash head of the n-gram layer at `position` among them: consecutive primes from the base."""
    primes: list[int] = []
    value = c.ngram_base
    while len(primes) < (position + 1) * c.ngram_tables:
        if value > 1 and all(value % d for d in range(2, int(value**0.5) + 1)):
            primes.append(value)
        value += 1
    return tuple(primes[position * c.ngram_tables :])


def hash_multipliers(c: ModelConfig, position: int) -> tuple[int, ...]:
    """The odd multipliers of the hash, from the config's seed by splitmix64."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15
    half = max(1, ((2**63 - 1) // c.vocab) // 2)

    def mix(value: int) -> int:
        value = (value + golden) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    base = c.ngram_seed + 10007 * position
    return tuple(2 * (mix((base + golden * (i + 1)) & mask) % half) + 1 for i in range(c.ngram_size))
