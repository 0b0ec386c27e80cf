"""Sizes of checkpoints known by name, for planning before any file is there. Free of torch; the operator imports it."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from carousel_server.model_shape import ModelShape

_FLASH_NEXT: Final[Mapping[str, Any]] = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 248_320,
    "hidden_size": 2560,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
    "max_position_embeddings": 262_144,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "indexer_n_heads": 4,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
    "hc_count": 4,
    "hc_lowrank": 320,
    "ple_layer_ids": [2],
    "ple_embed_dim": 2560,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "mtp_num_hidden_layers": 1,
    "tie_word_embeddings": False,
}


def _load() -> dict[str, ModelShape]:
    tiny = json.loads(files("carousel_server").joinpath("embedded/config.json").read_text())
    flash, flash_fp8 = "qwen3.8-flash-next-bf16", "qwen3.8-flash-next-fp8"
    return {
        "tiny": ModelShape.from_config(tiny, "tiny"),
        flash: ModelShape.from_config(_FLASH_NEXT, flash),
        flash_fp8: ModelShape.from_config({**_FLASH_NEXT, "quantization_config": {"quant_method": "fp8"}}, flash_fp8),
    }


PRESETS: Final[Mapping[str, ModelShape]] = _load()
