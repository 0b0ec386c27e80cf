"""The checkpoint as the operators want it: merged projections, norm scales with their 1 added, experts as views.

Dense parts are packed once into `dtype`. Experts, the n-gram table and the embedding stay mapped in the checkpoint's
type and are widened where they are used; only a model whose experts fit `expand_bytes` gets widened copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, overload

import torch
from carousel_kernels.fp8 import BLOCK, dequantize, quantize
from torch import Tensor

from carousel_server.engine.arena import Arena
from carousel_server.engine.checkpoint import Checkpoint
from carousel_server.engine.layout import TEXT

EXPAND_BYTES = 256 * 2**20  # experts up to this size, widened, are kept in memory
PIECE = 32 * BLOCK  # rows that are quantised at a time: fp32 work of a few times 40 MB at a width of 2,560


@dataclass(frozen=True)
class Mixer:
    """One gated hyper-connection."""

    scale: Tensor  # [n, H]
    down: Tensor  # [r + n, n * H]: low-rank rows, then one inject row for each stream; [r, n * H] for a final mixer
    up: Tensor  # [n * H, r]


@dataclass(frozen=True)
class Delta:
    """A gated DeltaNet block."""

    project: Tensor  # [channels + width + 2 * h_v, H]: qkv, z, b, a
    taps: Tensor  # [K, channels], oldest first
    decay: Tensor  # [h_v], -exp(A_log)
    dt_bias: Tensor  # [h_v]
    scale: Tensor  # [dv]
    out: Tensor  # [H, width]
    project_scale: Tensor | None = None  # of the 128 x 128 blocks of `project` where that is FP8
    out_scale: Tensor | None = None


@dataclass(frozen=True)
class Attention:
    """A sparse attention block with its indexer."""

    project: Tensor  # [2 * h * d + 2 * h_kv * d + (h_i + 1) * d_i, H]: q and gate head by head, k, v, index q, index k
    q_scale: Tensor  # [d]
    k_scale: Tensor  # [d]
    index_q_scale: Tensor  # [d_i]
    index_k_scale: Tensor  # [d_i]
    out: Tensor  # [H, h * d]
    project_scale: Tensor | None = None  # as in Delta
    out_scale: Tensor | None = None


@dataclass(frozen=True)
class Experts:
    """Router, routed experts and the shared expert."""

    project: Tensor  # [E + 2 * I_s + 1, H]: router, shared gate and up, the shared expert's opening
    gate_up: Sequence[Tensor]  # E of [2 * I, H]
    down: Sequence[Tensor]  # E of [H, I]
    shared_down: Tensor  # [H, I_s]


@dataclass(frozen=True)
class Ngram:
    """An n-gram layer."""

    multipliers: Tensor  # [N] int64
    sizes: Tensor  # [G] int64
    offsets: Tensor  # [G] int64
    shards: Sequence[Tensor]  # [rows, w] each, mapped
    table_scale: float
    project: Tensor  # [n * H + H, ngram_dim]: key, value
    key_scale: Tensor  # [n, H]
    query_scale: Tensor  # [n, H]
    conv_scale: Tensor  # [n, H]
    taps: Tensor  # [K, n * H], oldest first


@dataclass(frozen=True)
class Layer:
    """A decoder layer: n-gram injection if any, a block, experts."""

    ngram: Ngram | None
    block_mixer: Mixer
    block: Delta | Attention
    experts_mixer: Mixer
    experts: Experts


@dataclass(frozen=True)
class DraftHead:
    """The multi-token prediction head."""

    embedding_scale: Tensor  # [H]
    hidden_scale: Tensor  # [n * H]
    fc_embedding: Tensor  # [H, H]
    fc_hidden: Tensor  # [H, H]
    layer: Layer
    mixer: Mixer
    head: Tensor  # [V, H]: the model's own, or an FP8 copy of it
    head_scale: Tensor | None = None  # of the 128 x 128 blocks of `head` where that is FP8


@dataclass(frozen=True)
class Weights:
    """The whole model."""

    embedding: Tensor  # [V, H], mapped
    layers: tuple[Layer, ...]
    mixer: Mixer
    head: Tensor  # [V, H]
    draft: DraftHead | None


Block = TypeVar("Block", Delta, Attention)


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """What `quantize` returns, made a few rows at a time."""
    values, scales = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device), []
    for at in range(0, weight.shape[0], PIECE):
        values[at : at + PIECE], scale = quantize(weight[at : at + PIECE])
        scales.append(scale)
    return values, torch.cat(scales)


def with_fp8(block: Block) -> Block:
    """The block with its two projections in FP8."""
    project, project_scale = quantized(block.project)
    out, out_scale = quantized(block.out)
    return replace(block, project=project, out=out, project_scale=project_scale, out_scale=out_scale)


class Fp8Experts(Sequence[Tensor]):
    """Experts of the FP8 layout, widened each time they are asked for."""

    def __init__(self, parts: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> None:
        self._parts = parts  # for each expert the (weight, scale) pairs that stack into one matrix

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, at: int) -> Tensor: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, at: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(at, slice):
            return Fp8Experts(self._parts[at])
        return torch.cat([dequantize(weight, scale) for weight, scale in self._parts[at]])


class Packer:
    """Builds `Weights` from a checkpoint, on one device and in one dense type."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        drafts: bool = True,
        expand_bytes: int = EXPAND_BYTES,
    ) -> None:
        self.checkpoint, self.config = checkpoint, checkpoint.config
        self.device, self.dtype, self.drafts = device, dtype, drafts
        self._arena = Arena()
        c = self.config
        layers = len(c.layers) + (1 if checkpoint.layout.mtp else 0)
        self.expand = layers * c.experts * 3 * c.expert_width * c.hidden * 4 <= expand_bytes

    def pack(self) -> Weights:
        """Everything."""
        head = self._dense("lm_head.weight")
        draft = self._draft(head) if self.drafts and self.checkpoint.layout.mtp else None
        return Weights(
            embedding=self.checkpoint.tensor(f"{TEXT}embed_tokens.weight"),
            layers=tuple(self._layer(f"{TEXT}layers.{i}", i) for i in range(len(self.config.layers))),
            mixer=self._mixer(f"{TEXT}hyper_connection_mixer", inject=False),
            head=head,
            draft=draft,
        )

    def _dense(self, *names: str) -> Tensor:
        """The named matrices below each other."""
        parts = [self.checkpoint.tensor(name) for name in names]
        whole = parts[0] if len(parts) == 1 else torch.cat([p.to(self.device, self.dtype) for p in parts])
        return self._fastest(whole.to(self.device, self.dtype))

    def _fastest(self, weight: Tensor) -> Tensor:
        """The same matrix, or stack of them, in the memory order that `linear` likes best."""
        return self._arena.keep(weight.mT).mT if self.device.type == "cpu" else weight

    def _scale(self, name: str, *shape: int, centred: bool = True) -> Tensor:
        scale = self.checkpoint.tensor(name).to(self.device, torch.float32)
        return (scale + 1 if centred else scale).view(shape or scale.shape)

    def _taps(self, name: str) -> Tensor:
        return self.checkpoint.tensor(name)[:, 0].t().to(self.device, torch.float32).contiguous()

    def _mixer(self, p: str, inject: bool = True) -> Mixer:
        rows = (f"{p}.block_inject_weight.weight",) if inject else ()
        return Mixer(
            scale=self._scale(f"{p}.hc_norm.weight", self.config.streams, self.config.hidden),
            down=self._dense(f"{p}.input_mix_weight_down.weight", *rows),
            up=self._dense(f"{p}.input_mix_weight_up.weight"),
        )

    def _layer(self, p: str, index: int | None) -> Layer:
        linear = index is not None and self.config.layers[index] == "linear"
        return Layer(
            ngram=self._ngram(f"{p}.ple") if index in self.config.ngram_layers else None,
            block_mixer=self._mixer(f"{p}.attn_hyper_connection"),
            block=self._delta(f"{p}.linear_attn") if linear else self._attention(f"{p}.self_attn"),
            experts_mixer=self._mixer(f"{p}.mlp_hyper_connection"),
            experts=self._experts(f"{p}.mlp"),
        )

    def _delta(self, p: str) -> Delta:
        return Delta(
            project=self._dense(*(f"{p}.in_proj_{name}.weight" for name in ("qkv", "z", "b", "a"))),
            taps=self._taps(f"{p}.conv1d.weight"),
            decay=-self._scale(f"{p}.A_log", centred=False).exp(),
            dt_bias=self._scale(f"{p}.dt_bias", centred=False),
            scale=self._scale(f"{p}.norm.weight", centred=False),
            out=self._dense(f"{p}.out_proj.weight"),
        )

    def _attention(self, p: str) -> Attention:
        names = ("q_proj", "k_proj", "v_proj", "indexer.index_qk_proj")
        return Attention(
            project=self._dense(*(f"{p}.{name}.weight" for name in names)),
            q_scale=self._scale(f"{p}.q_norm.weight"),
            k_scale=self._scale(f"{p}.k_norm.weight"),
            index_q_scale=self._scale(f"{p}.indexer.q_layernorm.weight"),
            index_k_scale=self._scale(f"{p}.indexer.k_layernorm.weight"),
            out=self._dense(f"{p}.o_proj.weight"),
        )

    def _experts(self, p: str) -> Experts:
        shared = f"{p}.shared_expert"
        return Experts(
            project=self._dense(
                f"{p}.gate.weight",
                f"{shared}.gate_proj.weight",
                f"{shared}.up_proj.weight",
                f"{p}.shared_expert_gate.weight",
            ),
            gate_up=self._routed(p, "gate_up"),
            down=self._routed(p, "down"),
            shared_down=self._dense(f"{shared}.down_proj.weight"),
        )

    def _routed(self, p: str, which: str) -> Sequence[Tensor]:
        get = self.checkpoint.tensor
        if not self.checkpoint.layout.fp8_experts:
            stacked = get(f"{p}.experts.{which}_proj")
            return (self._fastest(stacked.to(self.dtype)) if self.expand else stacked).unbind(0)
        names = ("gate_proj", "up_proj") if which == "gate_up" else ("down_proj",)
        prefixes = [[f"{p}.experts.{e}.{name}" for name in names] for e in range(self.config.experts)]
        experts = Fp8Experts(
            [[(get(f"{n}.weight"), get(f"{n}.weight_scale_inv")) for n in group] for group in prefixes]
        )
        return tuple(map(self._fastest, experts)) if self.expand else experts

    def _ngram(self, p: str) -> Ngram:
        c, get, embedding = self.config, self.checkpoint.tensor, f"{p}.ple_embedding"
        table = f"{embedding}.ngram_embedding"
        shards: Sequence[Tensor] = [get(f"{table}.shard_{i}.weight") for i in range(c.ngram_shards)]
        if self.expand and not self.checkpoint.layout.fp8_ngram and sum(s.numel() for s in shards) * 4 <= EXPAND_BYTES:
            shards = [torch.cat([s.to(self.dtype) for s in shards])]
        streams = (c.streams, c.hidden)
        return Ngram(
            multipliers=get(f"{embedding}.layer_multipliers").to(self.device),
            sizes=get(f"{embedding}.ngram_heads_vocab_sizes").to(self.device),
            offsets=get(f"{embedding}.ngram_heads_offsets").to(self.device),
            shards=shards,
            table_scale=float(get(f"{table}.weight_scale")) if self.checkpoint.layout.fp8_ngram else 1.0,
            project=self._dense(f"{p}.key_proj.weight", f"{p}.value_proj.weight"),
            key_scale=self._scale(f"{p}.norm_key.weight", *streams),
            query_scale=self._scale(f"{p}.norm_query.weight", *streams),
            conv_scale=self._scale(f"{p}.norm_conv.weight", *streams),
            taps=self._taps(f"{p}.conv1d.weight"),
        )

    def _draft(self, head: Tensor) -> DraftHead:
        return DraftHead(
            embedding_scale=self._scale("mtp.pre_fc_norm_embedding.weight"),
            hidden_scale=self._scale("mtp.pre_fc_norm_hidden.weight"),
            fc_embedding=self._dense("mtp.fc_embedding.weight"),
            fc_hidden=self._dense("mtp.fc_hidden.weight"),
            layer=self._layer("mtp.layers.0", None),
            mixer=self._mixer("mtp.hyper_connection_mixer", inject=False),
            head=head,
        )
