"""From a model folder to a running engine."""

from pathlib import Path

import torch

from carousel_server.engine import threads as cpu
from carousel_server.engine.checkpoint import Checkpoint
from carousel_server.engine.config import CheckpointError
from carousel_server.engine.model import Model
from carousel_server.engine.state import StatePool
from carousel_server.engine.tokens import stop_tokens, valid_tokens
from carousel_server.engine.torch_engine import TorchEngine
from carousel_server.engine.weights import Packer

DEFAULT_CONTEXT = 32768


def start(
    folder: Path, *, context_tokens: int | None, slots: int, drafts: int, threads: int | None = None
) -> TorchEngine:
    """See `carousel_server.engine.load`."""
    checkpoint = Checkpoint(folder)
    config = checkpoint.config
    chosen = cpu.choose(config.hidden, threads)
    torch.set_num_threads(chosen.prefill)
    if context_tokens is not None and context_tokens > config.max_positions:
        raise CheckpointError(
            f"context of {context_tokens} tokens: {folder} goes to {config.max_positions} (max_position_embeddings)"
        )
    drafts = drafts if checkpoint.layout.mtp else 0
    valid, stops = valid_tokens(folder, config), stop_tokens(folder, config)
    device = torch.device("cpu")
    with torch.inference_mode():
        weights = Packer(checkpoint, device, drafts=drafts > 0).pack()
        pool = StatePool(
            config,
            slots=slots,
            capacity=min(DEFAULT_CONTEXT, config.max_positions) if context_tokens is None else context_tokens,
            drafts=drafts,
            device=device,
        )
        model = Model(config, weights, capacity=pool.capacity, device=device)
    return TorchEngine(model, pool, valid_tokens=valid, stop_tokens=stops, threads=chosen)
