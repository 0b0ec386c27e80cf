"""Sizes of a `qwen4_exp` checkpoint, from its config alone. Knows no limit and no device."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

FULL_ATTENTION = frozenset({"full_attention", "indexed_attention", "qwen_sparse_attention"})


@dataclass(frozen=True)
class ModelShape:
    """What decides bytes. Parameter counts leave out the vision tower, which is never loaded."""

    name: str
    vocab: int
    hidden: int
    streams: int
    lowrank: int
    linear_layers: int
    attention_layers: int
    mtp_layers: int
    max_context_tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int  # rotated entries of a head
    index_heads: int
    index_dim: int
    index_ratio: int
    index_blocks: int  # blocks that a query keeps
    linear_key_heads: int
    linear_value_heads: int
    linear_key_dim: int
    linear_value_dim: int
    linear_conv: int
    experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    ple_layers: int
    ple_dim: int
    ple_conv: int
    ngram_size: int
    ngram_rows: int
    ngram_width: int
    tied_embeddings: bool
    expert_element_bytes: int  # 1 in an FP8 checkpoint, else as dense weights; the n-gram table has the same
    dense_element_bytes: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str = "") -> Self:
        """From a parsed `config.json`. Raises ValueError naming the field that is missing or makes no sense."""
        text = config.get("text_config", config)
        kind = text.get("model_type")
        if kind not in ("qwen4_exp_text", "qwen4_exp"):
            raise ValueError(f"model_type is {kind!r}; this server runs qwen4_exp only")
        try:
            types = text["layer_types"]
            attention = sum(t in FULL_ATTENTION for t in types)
            heads_per_ngram, ngram = text.get("heads_per_ngram", 8), text.get("ngram_size", 3)
            groups = heads_per_ngram * (ngram - 1)
            ple_layers = len(text.get("ple_layer_ids") or ())
            quantized = (config.get("quantization_config") or text.get("quantization_config") or {}).get("quant_method")
            rope = text.get("rope_parameters") or {}
            dtype = text.get("dtype") or config.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype")
            element = 4 if dtype == "float32" else 2
            return cls(
                name=name or str(config.get("_name_or_path", kind)),
                vocab=text["vocab_size"],
                hidden=text["hidden_size"],
                streams=text["hc_count"],
                lowrank=text["hc_lowrank"],
                linear_layers=len(types) - attention,
                attention_layers=attention,
                mtp_layers=text.get("mtp_num_hidden_layers", 0),
                max_context_tokens=text["max_position_embeddings"],
                heads=text["num_attention_heads"],
                kv_heads=text["num_key_value_heads"],
                head_dim=text["head_dim"],
                rotary=int(text["head_dim"] * rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 1))),
                index_heads=text["indexer_n_heads"],
                index_dim=text["indexer_head_dim"],
                index_ratio=text["indexer_compress_ratio"],
                index_blocks=text["indexer_budget"] // text["indexer_compress_ratio"],
                linear_key_heads=text["linear_num_key_heads"],
                linear_value_heads=text["linear_num_value_heads"],
                linear_key_dim=text["linear_key_head_dim"],
                linear_value_dim=text["linear_value_head_dim"],
                linear_conv=text["linear_conv_kernel_dim"],
                experts=text["num_experts"],
                experts_per_token=text["num_experts_per_tok"],
                expert_width=text["moe_intermediate_size"],
                shared_width=text["shared_expert_intermediate_size"],
                ple_layers=ple_layers,
                ple_dim=text.get("ple_embed_dim", 0),
                ple_conv=text.get("ple_conv_kernel_size", 0),
                ngram_size=ngram,
                ngram_rows=_table_rows(text, groups * ple_layers) if ple_layers else 0,
                ngram_width=text.get("ple_embed_dim", 0) // groups,
                tied_embeddings=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
                expert_element_bytes=1 if quantized == "fp8" else element,
                dense_element_bytes=element,
            )
        except KeyError as missing:
            raise ValueError(f"config.json has no {missing.args[0]!r}, which decides this model's memory") from None

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts, the draft head's among them."""
        return self.linear_layers + self.attention_layers + self.mtp_layers

    @property
    def expert_params(self) -> int:
        """Parameters of one routed expert."""
        return 3 * self.expert_width * self.hidden

    @property
    def routed_params(self) -> int:
        """Parameters of every routed expert of every layer."""
        return self.moe_layers * self.experts * self.expert_params

    @property
    def table_params(self) -> int:
        """Parameters of the n-gram table."""
        return self.ngram_rows * self.ngram_width

    @property
    def mixed_channels(self) -> int:
        """Channels of q, k and v of one DeltaNet layer, which its convolution remembers."""
        return 2 * self.linear_key_heads * self.linear_key_dim + self.linear_value_heads * self.linear_value_dim

    @property
    def dense_params(self) -> int:
        """Everything that is neither a routed expert nor the n-gram table, the draft head included."""
        return self._model_params + self.draft_params

    @property
    def draft_params(self) -> int:
        """Dense parameters of the draft head."""
        if not self.mtp_layers:
            return 0
        fuse = 2 * self.hidden**2 + self.hidden + self.hidden * self.streams
        return fuse + self._mixer_params + self.mtp_layers * (self._attention_params + self._around_params)

    @property
    def _model_params(self) -> int:
        h, nh = self.hidden, self.hidden * self.streams
        values = self.linear_value_heads * self.linear_value_dim
        linear = h * (self.mixed_channels + 2 * values + 2 * self.linear_value_heads)
        linear += self.mixed_channels * self.linear_conv + 2 * self.linear_value_heads + self.linear_value_dim
        ple = nh * self.ple_dim + h * self.ple_dim + 3 * nh + nh * self.ple_conv
        total = self.linear_layers * linear + self.attention_layers * self._attention_params
        total += (self.linear_layers + self.attention_layers) * self._around_params
        return total + self._mixer_params + self.ple_layers * ple + self.vocab * h * (1 if self.tied_embeddings else 2)

    @property
    def _attention_params(self) -> int:
        found = self.hidden * self.head_dim * (3 * self.heads + 2 * self.kv_heads) + 2 * self.head_dim
        return found + self.hidden * self.index_dim * (self.index_heads + 1) + 2 * self.index_dim

    @property
    def _mixer_params(self) -> int:
        return self.hidden * self.streams * (1 + 2 * self.lowrank)

    @property
    def _around_params(self) -> int:
        """Of a layer, beside its block and its routed experts: two hyper-connections, router, shared expert."""
        h = self.hidden
        router = self.experts * h + 3 * self.shared_width * h + h
        return 2 * (self._mixer_params + h * self.streams**2) + router

    def vector_params(self, *, drafts: bool) -> int:
        """Of the dense parameters those of norms, decays and convolutions; with drafts the draft head's too."""
        nh, attention = (
            self.hidden * self.streams,
            2 * (self.head_dim + self.index_dim) + 2 * self.hidden * self.streams,
        )
        linear = self.mixed_channels * self.linear_conv + 2 * self.linear_value_heads + self.linear_value_dim + 2 * nh
        total = self.linear_layers * linear + self.attention_layers * attention + nh
        total += self.ple_layers * nh * (3 + self.ple_conv)
        return total + (self.mtp_layers * attention + 2 * nh + self.hidden if drafts and self.mtp_layers else 0)

    @property
    def scale_blocks(self) -> int:
        """FP8 scales of one routed expert, one for each 128 x 128 block of its three matrices; 0 without FP8."""
        return 3 * -(-self.expert_width // 128) * -(-self.hidden // 128) if self.expert_element_bytes == 1 else 0

    @property
    def expert_bytes(self) -> int:
        """One routed expert as the checkpoint stores it, without its FP8 scales."""
        return self.expert_params * self.expert_element_bytes


def _table_rows(text: Mapping[str, Any], heads: int) -> int:
    """Head i of all has the (i+1)-th prime at or above the base as its size; the sum is padded."""
    base, pad = text["ngram_vocab_size_base"], text.get("make_ngram_vocab_size_divisible_by", 128)
    total, candidate = 0, base
    for _ in range(heads):
        while not _is_prime(candidate):
            candidate += 1
        total += candidate
        candidate += 1
    return int(-(-total // pad) * pad)


def _is_prime(n: int) -> bool:
    if n < 4:
        return n > 1
    if n % 2 == 0:
        return False
    d = 3
    while d * d <= n:
        if n % d == 0:
            return False
        d += 2
    return True
