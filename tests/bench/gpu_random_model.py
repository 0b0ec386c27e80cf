"""A model of the released shapes with random weights made on the device, for benches. No checkpoint is needed.

Experts of one layer are drawn; other layers hold copies of them in memory of their own ("aliased": same values,
distinct
bytes). Router rows have log-normal norms (sigma `skew`), so that some experts are chosen more often; skew 0 is uniform.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from carousel_server.engine.config import ModelConfig, parse_config
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.gpu_forward import Table
from carousel_server.engine.gpu_state import SlotState
from carousel_server.engine.host_memory import HostMemory, cuda_memory
from carousel_server.engine.layout import hash_multipliers, hash_sizes
from carousel_server.engine.pool import ExpertPool, HostExperts
from carousel_server.engine.weights import (
    Attention,
    Delta,
    DraftHead,
    Experts,
    Layer,
    Mixer,
    Ngram,
    Weights,
    quantized,
    with_fp8,
)
from torch import Tensor

DEVICE = torch.device("cuda")
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
SPREAD = 32.0  # FP8 values are drawn with this deviation; block scales bring them back


def released_config(layers: int = 48, ngram_base: int = 20_000_000) -> dict[str, Any]:
    """The text part of the released model's config.json, with this many layers."""
    return {
        "model_type": "qwen4_exp_text", "vocab_size": 248320, "hidden_size": 2560, "num_hidden_layers": layers,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4), "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144, "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "output_gate_type": "sigmoid", "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640, "hc_count": 4, "hc_lowrank": 320,
        "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3,
        "heads_per_ngram": 8,
        "ngram_vocab_size_base": ngram_base, "make_ngram_vocab_size_divisible_by": 128, "split_ngram_parts": 128,
        "indexer_n_heads": 4, "indexer_head_dim": 128, "indexer_budget": 2048, "indexer_compress_ratio": 4,
        "mtp_num_hidden_layers": 1, "eos_token_id": 248044,
    }  # fmt: skip


def released(layers: int = 48, ngram_base: int = 20_000_000) -> ModelConfig:
    """The released model's config with this many layers."""
    return parse_config(released_config(layers, ngram_base), "released shapes")


@dataclass
class Random:
    """Draws weights. `stored` experts [E, 3 * I * H] FP8 and scales [E, blocks] serve every layer."""

    config: ModelConfig
    skew: float = 0.7
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator(DEVICE).manual_seed(self.seed)

    def normal(self, *shape: int, std: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device=DEVICE).normal_(0.0, std, generator=self.generator)

    def linear(self, out: int, width: int, gain: float = 1.0) -> Tensor:
        return self.normal(out, width, std=gain / width**0.5, dtype=BF16)

    def scale(self, *shape: int) -> Tensor:
        return 1 + self.normal(*shape, std=0.1)

    def experts(self) -> tuple[Tensor, Tensor]:
        c = self.config
        part = c.expert_width * c.hidden
        stored = torch.empty(c.experts, 3 * part, dtype=FP8, device=DEVICE)
        for e in range(0, c.experts, 32):
            stored[e : e + 32] = self.normal(32, 3 * part, std=SPREAD, dtype=BF16).clamp_(-440, 440).to(FP8)
        bi, bh = -(-c.expert_width // 128), -(-c.hidden // 128)
        draw = 0.5 + torch.rand(c.experts, 3 * bi * bh, device=DEVICE, generator=self.generator)
        draw[:, : 2 * bi * bh] /= SPREAD * c.hidden**0.5
        draw[:, 2 * bi * bh :] /= SPREAD * c.expert_width**0.5 / 3
        return stored, draw

    def mixer(self, inject: bool = True) -> Mixer:
        c = self.config
        down = self.linear(c.mix_rank + (c.streams if inject else 0), c.stream_width, 3.0)
        return Mixer(self.scale(c.streams, c.hidden), down, self.linear(c.stream_width, c.mix_rank, 3.0))

    def delta(self) -> Delta:
        c = self.config
        heads = c.delta_value_heads
        return Delta(
            project=self.linear(c.delta_channels + c.delta_width + 2 * heads, c.hidden, 2.0),
            taps=self.normal(c.delta_taps, c.delta_channels, std=0.5),
            decay=-torch.exp(self.normal(heads)),
            dt_bias=self.normal(heads) - 2,
            scale=self.scale(c.delta_value_dim),
            out=self.linear(c.hidden, c.delta_width),
        )

    def attention(self) -> Attention:
        c = self.config
        wide = (2 * c.heads + 2 * c.kv_heads) * c.head_dim + (c.index_heads + 1) * c.index_dim
        scales = [self.scale(d) for d in (c.head_dim, c.head_dim, c.index_dim, c.index_dim)]
        return Attention(self.linear(wide, c.hidden, 2.0), *scales, self.linear(c.hidden, c.heads * c.head_dim))

    def layer(self, kind: str, ngram: bool) -> Layer:
        c = self.config
        project = self.linear(c.experts + 2 * c.shared_width + 1, c.hidden, 2.0)
        project[: c.experts] *= torch.exp(self.normal(c.experts, 1, std=self.skew)).to(BF16)
        return Layer(
            self.ngram() if ngram else None,
            self.mixer(),
            self.delta() if kind == "linear" else self.attention(),
            self.mixer(),
            Experts(project, (), (), self.linear(c.hidden, c.shared_width)),
        )

    def ngram(self) -> Ngram:
        c = self.config
        sizes = torch.tensor(hash_sizes(c, 0), device=DEVICE)
        return Ngram(
            torch.tensor(hash_multipliers(c, 0), device=DEVICE), sizes, sizes.cumsum(0) - sizes, (), 1 / SPREAD,
            self.linear(c.stream_width + c.hidden, c.ngram_dim, 2.0), *(self.scale(c.streams,
            c.hidden) for _ in range(3)),
            self.normal(c.ngram_taps, c.stream_width, std=0.5),
        )  # fmt: skip

    def weights(self, draft: bool = True) -> Weights:
        c = self.config
        drafting = (
            self.scale(c.hidden), self.scale(c.stream_width), self.linear(c.hidden, c.hidden),
            self.linear(c.hidden, c.hidden), self.layer("attention", False), self.mixer(False),
        ) if draft else None  # fmt: skip
        layers = tuple(self.layer(kind, i in c.ngram_layers) for i, kind in enumerate(c.layers))
        embedding, mixer = self.normal(c.vocab, c.hidden, dtype=BF16), self.mixer(False)
        head = self.linear(c.vocab, c.hidden, 3.0)
        return Weights(embedding, layers, mixer, head, DraftHead(*drafting, *quantized(head)) if drafting else None)


def host_buffer(nbytes: int) -> Tensor:
    """Plain host memory, to be registered: pinned allocation is slow (18 s for 24 GiB)."""
    area = mmap.mmap(-1, nbytes)
    return torch.frombuffer(area, dtype=torch.uint8)


def table(c: ModelConfig, nbytes: int, draw: Random, held: HostMemory) -> Table:
    """An n-gram table in registered host memory of about `nbytes`: its shards share that memory (aliased)."""
    rows = -(-sum(hash_sizes(c, 0)) // c.ngram_multiple) * c.ngram_multiple
    height, width = rows // c.ngram_shards, c.ngram_dim // c.ngram_tables
    distinct = max(1, min(c.ngram_shards, nbytes // (height * width)))
    memory = host_buffer(distinct * height * width)
    step = 2**28
    for at in range(0, memory.numel(), step):
        part = memory[at : at + step]
        part.copy_(draw.normal(part.numel(), std=SPREAD, dtype=BF16).clamp_(-440, 440).to(FP8).view(torch.uint8))
    held.visible([memory])
    at = torch.arange(c.ngram_shards) % distinct * (height * width) + memory.data_ptr()
    return Table(at.to(DEVICE), height, str(FP8), (memory,))


@dataclass
class Bench:
    """An engine and what the bench needs beside it."""

    engine: GpuEngine
    weights: Weights
    stored: Tensor  # [E, 3 * I * H] FP8 on the device, the values of every layer's experts
    scales: Tensor
    host_layers: int  # distinct layers of experts in host memory


def build(
    c: ModelConfig, *, slots: int = 2, context: int = 8192, pool_bytes: int | None = None, host_layers: int = 4,
    skew: float = 0.7, drafts: int = 2, table_bytes: int = 2**31, graphs: bool = True, prefill_rows: int = 4096,
    exact: bool = False, saved_bytes: int = 0,
) -> Bench:  # fmt: skip
    """An engine over random weights; with `pool_bytes`, experts beyond it lie in registered host memory."""
    held = cuda_memory()
    with torch.inference_mode():
        draw = Random(c, skew)
        weights = draw.weights(drafts > 0)
        stored, scales = draw.experts()
        layers = len(c.layers) + (1 if drafts else 0)
        each = stored.shape[1]
        count = (
            c.experts if pool_bytes is None else max(c.experts_per_token, min(c.experts, pool_bytes // (layers * each)))
        )
        pool = ExpertPool(c, layers, count, FP8, DEVICE, blocks=scales.shape[1])
        assert pool.scales is not None
        host: Sequence[Tensor] = ()
        if not pool.resident:
            host = [host_buffer(stored.numel()).view(FP8).view(stored.shape) for _ in range(host_layers)]
            for h in host:
                h.view(torch.uint8).copy_(stored.view(torch.uint8))
            held.visible([h.view(torch.uint8) for h in host], align=16)
        part = c.expert_width * c.hidden
        for i in range(layers):
            pool.scales[i].copy_(scales)
            if pool.resident:
                pool.slabs[i].slots.copy_(stored)
            else:
                h = host[i % host_layers]
                parts = [tuple(h[e, j * part : (j + 1) * part] for j in range(3)) for e in range(c.experts)]
                pool.slabs[i].slots.copy_(stored[: pool.slots])
                quick = HostExperts(parts, None)  # type: ignore[arg-type]
                pool.adopt(i, quick)
        pool.registered = held
        state = SlotState.allocate(
            c,
            slots=slots,
            capacity=context,
            drafts=drafts > 0,
            device=DEVICE,
            cache_dtype=torch.float32 if exact else BF16,
        )
        tables = {i: table(c, table_bytes, draw, held) for i in c.ngram_layers}
    engine = GpuEngine(
        c, weights, state, pool, tables, valid_tokens=248077, stop_tokens=frozenset(), drafts=drafts, exact=exact,
        prefill_rows=prefill_rows, graphs=graphs, saved_bytes=saved_bytes,
    )  # fmt: skip
    return Bench(engine, weights, stored, scales, host_layers)


def dense_fp8(bench: Bench) -> GpuEngine:
    """The bench's model with FP8 projections and no drafts: slots of its own, experts, tables and all else shared."""
    first = bench.engine
    c = first.config
    with torch.inference_mode():
        layers = tuple(replace(layer, block=with_fp8(layer.block)) for layer in bench.weights.layers)
        own = SlotState.allocate(
            c, slots=first.info.slots, capacity=first.info.context_tokens, drafts=False, device=DEVICE, cache_dtype=BF16
        )
    return GpuEngine(
        c, replace(bench.weights, layers=layers, draft=None), own, first.pool, first.forward.tables,
        valid_tokens=first.info.valid_tokens, stop_tokens=frozenset(), drafts=0, exact=False,
        prefill_rows=first.prefill_rows,
    )  # fmt: skip
