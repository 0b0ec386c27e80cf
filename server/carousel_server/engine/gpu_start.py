"""From a model folder to a running GPU engine."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from carousel_server.allocations import ALIGNMENT, EXACT_PARAMETERS, SMALL_TABLE
from carousel_server.engine.checkpoint import Checkpoint
from carousel_server.engine.config import CheckpointError
from carousel_server.engine.expert_loading import ExpertLoading
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.gpu_forward import Table
from carousel_server.engine.gpu_state import SlotState
from carousel_server.engine.host_memory import HostMemory, memory_for
from carousel_server.engine.layout import TEXT
from carousel_server.engine.pool import ExpertPool, HostExperts, slots_for
from carousel_server.engine.tokens import stop_tokens, valid_tokens
from carousel_server.engine.weights import Attention, Delta, DraftHead, Packer, Weights, quantized, with_fp8

DEFAULT_CONTEXT = 32768
LOADED = 0.2, 0.9  # shares of the start after the dense weights, and after the experts of a limited pool

Progress = Callable[[float, str], None]


class RowMajor(Packer):
    """Weights as the kernels read them, also where the device is a CPU that interprets them.

    dense_fp8: the projections of DeltaNet and attention are quantised, one layer after the other. The draft head reads
    an FP8 copy of the model's head: a draft that it gets wrong is rejected.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, *, drafts: bool, dense_fp8: bool = False
    ) -> None:
        super().__init__(checkpoint, device, dtype, drafts=drafts, expand_bytes=0)
        self.dense_fp8 = dense_fp8

    def _delta(self, p: str) -> Delta:
        block = super()._delta(p)
        return with_fp8(block) if self.dense_fp8 else block

    def _attention(self, p: str) -> Attention:
        block = super()._attention(p)
        return with_fp8(block) if self.dense_fp8 else block

    def _draft(self, head: Tensor) -> DraftHead:
        values, scale = quantized(head)
        return replace(super()._draft(head), head=values, head_scale=scale)

    def _fastest(self, weight: Tensor) -> Tensor:
        return weight


def start(
    folder: Path,
    *,
    context_tokens: int | None,
    slots: int,
    drafts: int,
    expert_pool_bytes: int | None = None,
    prefill_rows: int = 1024,
    saved_bytes: int = 0,
    dense_fp8: bool = False,
    device: torch.device | None = None,
    graphs: bool | None = None,
    exact: bool | None = None,
    progress: Progress | None = None,
) -> GpuEngine:
    """Check a checkpoint and build an engine on the GPU.

    expert_pool_bytes None: every expert resident. saved_bytes: host memory to make ready for suspended sequences and
    snapshots. dense_fp8: see `RowMajor`. exact None: fp32 activations and caches for small models. `device`
    is for tests: with the kernels interpreted, the CPU. `progress(share, what)` is told what begins, share 0 .. 1. A
    pool that holds all experts loads them beside the first requests, and the engine's stats say how far it is.
    """
    device = device or torch.device("cuda")
    tell = progress or (lambda share, what: None)
    checkpoint = Checkpoint(folder)
    config = checkpoint.config
    if context_tokens is not None and context_tokens > config.max_positions:
        raise CheckpointError(
            f"context of {context_tokens} tokens: {folder} goes to {config.max_positions} (max_position_embeddings)"
        )
    drafts = drafts if checkpoint.layout.mtp else 0
    if exact is None:
        exact = checkpoint.parameters() < EXACT_PARAMETERS
    dense = torch.bfloat16 if "BF16" in checkpoint.dtypes else torch.float32
    tell(0.0, "dense weights")
    with torch.inference_mode():
        weights = RowMajor(checkpoint, device, dense, drafts=drafts > 0, dense_fp8=dense_fp8).pack()
        weights = replace(weights, embedding=weights.embedding.to(device))
        state = SlotState.allocate(
            config,
            slots=slots,
            capacity=min(DEFAULT_CONTEXT, config.max_positions) if context_tokens is None else context_tokens,
            drafts=drafts > 0,
            device=device,
            cache_dtype=torch.float32 if exact else torch.bfloat16,
        )
        held = memory_for(device)
        tell(LOADED[0], "n-gram table and experts: mapping")
        tables = {i: _table(weights, i, device, held) for i in config.ngram_layers}
        pool, layers = _pool(checkpoint, drafts > 0, expert_pool_bytes, device)
        if not pool.resident:
            _fill(pool, [layers(i) for i in range(pool.layers)], held, tell)
        pool.registered = held
    tell(LOADED[0] if pool.resident else LOADED[1], "kernels and graphs")
    engine = GpuEngine(
        config,
        weights,
        state,
        pool,
        tables,
        valid_tokens=valid_tokens(folder, config),
        stop_tokens=stop_tokens(folder, config),
        drafts=drafts,
        exact=exact,
        prefill_rows=prefill_rows,
        saved_bytes=saved_bytes,
        graphs=device.type == "cuda" if graphs is None else graphs,
    )
    if pool.resident:  # now: a capture bears no other thread that talks to the device
        pool.loading = loading = ExpertLoading(pool, layers, engine.stats)
        loading.start()
    return engine


def _table(weights: Weights, layer: int, device: torch.device, held: HostMemory) -> Table:
    ngram = weights.layers[layer].ngram
    assert ngram is not None
    small = sum(s.nbytes for s in ngram.shards) <= SMALL_TABLE
    shards = [s.to(device) for s in ngram.shards] if small else held.visible(ngram.shards)
    addresses = torch.tensor([s.data_ptr() for s in shards], dtype=torch.int64, device=device)
    return Table(addresses, shards[0].shape[0], str(shards[0].dtype), tuple(shards))


def _pool(
    checkpoint: Checkpoint, draft: bool, pool_bytes: int | None, device: torch.device
) -> tuple[ExpertPool, Callable[[int], HostExperts]]:
    """An empty pool, and where the experts of each of its layers lie."""
    c = checkpoint.config
    prefixes = [f"{TEXT}layers.{i}.mlp.experts" for i in range(len(c.layers))]
    prefixes += ["mtp.layers.0.mlp.experts"] if draft else []
    first = _experts(checkpoint, prefixes[0])
    dtype = first.parts[0][0].dtype
    slots = slots_for(pool_bytes, c, len(prefixes), 3 * c.expert_width * c.hidden * dtype.itemsize)
    blocks = 0 if first.scales is None else first.scales.shape[1]
    pool = ExpertPool(c, len(prefixes), slots, dtype, device, blocks=blocks)
    return pool, lambda i: _experts(checkpoint, prefixes[i])


def _fill(pool: ExpertPool, every: list[HostExperts], held: HostMemory, tell: Progress) -> None:
    """Make all experts visible to the device, and load as many as the pool holds."""
    share = (LOADED[1] - LOADED[0]) / len(every)
    for i, experts in enumerate(_visible(every, held)):
        tell(LOADED[0] + i * share, f"experts of layer {i + 1} of {len(every)}")
        pool.fill(i, experts)


def _visible(every: list[HostExperts], held: HostMemory) -> list[HostExperts]:
    """The experts of all layers where the device can copy them from."""
    found = iter(held.visible([part for one in every for parts in one.parts for part in parts], align=ALIGNMENT))
    return [HostExperts([(next(found), next(found), next(found)) for _ in one.parts], one.scales) for one in every]


def _experts(checkpoint: Checkpoint, prefix: str) -> HostExperts:
    c, get = checkpoint.config, checkpoint.tensor
    if not checkpoint.layout.fp8_experts:
        gate_up, down = get(f"{prefix}.gate_up_proj"), get(f"{prefix}.down_proj")
        return HostExperts(
            [(g[: c.expert_width], g[c.expert_width :], d) for g, d in zip(gate_up, down, strict=True)], None
        )
    names = ("gate_proj", "up_proj", "down_proj")
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    scales = []
    for e in range(c.experts):
        gate, up, down = (get(f"{prefix}.{e}.{name}.weight") for name in names)
        parts.append((gate, up, down))
        scales.append(torch.cat([get(f"{prefix}.{e}.{n}.weight_scale_inv").float().flatten() for n in names]))
    return HostExperts(parts, torch.stack(scales))
