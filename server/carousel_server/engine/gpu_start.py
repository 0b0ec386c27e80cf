"""From a model folder to a running GPU engine."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from carousel_server.engine.checkpoint import Checkpoint
from carousel_server.engine.config import CheckpointError
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.gpu_forward import Table
from carousel_server.engine.gpu_state import SlotState
from carousel_server.engine.host_memory import Registered
from carousel_server.engine.layout import TEXT
from carousel_server.engine.pool import ExpertPool, HostExperts, slots_for
from carousel_server.engine.tokens import stop_tokens, valid_tokens
from carousel_server.engine.weights import Packer, Weights

DEFAULT_CONTEXT = 32768
SMALL_TABLE = 256 * 2**20  # bytes up to which an n-gram table is copied to the device
EXACT_PARAMETERS = 10**9  # models below this prefill with fp32 activations: it costs them nothing


class RowMajor(Packer):
    """Weights as the kernels read them, also where the device is a CPU that interprets them."""

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
    device: torch.device | None = None,
    graphs: bool | None = None,
    exact: bool | None = None,
) -> GpuEngine:
    """Check a checkpoint and build an engine on the GPU.

    expert_pool_bytes None: every expert resident. exact None: fp32 activations and caches for small models. `device`
    is for tests: with the kernels interpreted, the CPU.
    """
    device = device or torch.device("cuda")
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
    with torch.inference_mode():
        weights = RowMajor(checkpoint, device, dense, drafts=drafts > 0, expand_bytes=0).pack()
        weights = replace(weights, embedding=weights.embedding.to(device))
        state = SlotState.allocate(
            config,
            slots=slots,
            capacity=min(DEFAULT_CONTEXT, config.max_positions) if context_tokens is None else context_tokens,
            drafts=drafts > 0,
            device=device,
            cache_dtype=torch.float32 if exact else torch.bfloat16,
        )
        held = Registered()
        tables = {i: _table(weights, i, device, held) for i in config.ngram_layers}
        pool = _pool(checkpoint, drafts > 0, expert_pool_bytes, device, held)
    return GpuEngine(
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
        graphs=device.type == "cuda" if graphs is None else graphs,
    )


def _table(weights: Weights, layer: int, device: torch.device, held: Registered) -> Table:
    ngram = weights.layers[layer].ngram
    assert ngram is not None
    shards = list(ngram.shards)
    if device.type == "cuda":
        if sum(s.nbytes for s in shards) <= SMALL_TABLE:
            shards = [s.to(device) for s in shards]
        else:
            held.add(shards)
    addresses = torch.tensor([s.data_ptr() for s in shards], dtype=torch.int64, device=device)
    return Table(addresses, shards[0].shape[0], str(shards[0].dtype), tuple(shards))


def _pool(
    checkpoint: Checkpoint, draft: bool, pool_bytes: int | None, device: torch.device, held: Registered
) -> ExpertPool:
    c = checkpoint.config
    prefixes = [f"{TEXT}layers.{i}.mlp.experts" for i in range(len(c.layers))]
    prefixes += ["mtp.layers.0.mlp.experts"] if draft else []
    first = _experts(checkpoint, prefixes[0])
    dtype = first.parts[0][0].dtype
    slots = slots_for(pool_bytes, c, len(prefixes), 3 * c.expert_width * c.hidden * dtype.itemsize)
    blocks = 0 if first.scales is None else first.scales.shape[1]
    pool = ExpertPool(c, len(prefixes), slots, dtype, device, blocks=blocks)
    for i, prefix in enumerate(prefixes):
        experts = first if i == 0 else _experts(checkpoint, prefix)
        if not pool.resident and device.type == "cuda":
            held.add([p for parts in experts.parts for p in parts])
        pool.fill(i, experts)
    pool.registered = held
    return pool


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
