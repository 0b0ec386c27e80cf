"""Driving an engine the way the worker does: prefill, select, step, and nothing below them except to read logits."""

import torch
from carousel_server.engine import load
from carousel_server.engine.mtp import DraftCost, DraftWidth
from carousel_server.engine.protocol import SamplerParams

GREEDY = SamplerParams()
LEAST_GAP = 1e-3  # a smaller gap of the two best logits may turn with the rounding of another chunk


def open_engine(folder, *, context_tokens=512, slots=2, drafts=3):
    return load(str(folder), context_tokens=context_tokens, slots=slots, drafts=drafts, threads=1)


def kept_logits(engine, seq) -> torch.Tensor:
    """The logits of the last row, as `select` sees them."""
    return seq.slot.logits[(seq.length - 1) % engine.pool.steps].clone()


def eager(seq):
    """Let it draft as many tokens as it may, however they fare; returns it."""
    seq.width = DraftWidth(DraftCost(draft=0.0, row=0.0))
    return seq


def drafted(gpu, seq, token, drafts) -> tuple[list[int], list[int]]:
    """A step of an eager sequence on the GPU engine: what was chosen, and what the draft head proposed."""
    at = seq.length
    chosen = [s.token for s in gpu.step(seq, token, GREEDY, drafts)]
    return chosen, gpu.state.tokens[seq.slot, at + 1 : at + 1 + drafts].tolist()


def draft_rows(gpu, seq, rows) -> list[torch.Tensor]:
    """Keys, values and index keys of the first rows that the draft head of the GPU engine was given."""
    d = gpu.state.draft
    blocks = rows // gpu.state.ratio
    return [d.keys[seq.slot, :, :rows], d.values[seq.slot, :, :rows], d.index_keys[seq.slot, :blocks]]


def feed(engine, seq, tokens, chunk):
    for at in range(0, len(tokens), chunk):
        engine.prefill(seq, tokens[at : at + chunk])


def all_logits(engine, tokens, chunk) -> torch.Tensor:
    """Logits of every row, prefilled `chunk` rows at a time."""
    seq = engine.create(len(tokens))
    slot, out = seq.slot, []
    with torch.inference_mode():
        slot.tokens[: len(tokens)] = torch.tensor(tokens)
        for at in range(0, len(tokens), chunk):
            rows = min(chunk, len(tokens) - at)
            out.append(engine.model.logits(engine.model.forward(slot, at, rows, rewindable=False)))
    engine.release(seq)
    return torch.cat(out)


def greedy(engine, prompt, count, *, chunk=1000, drafts=0, between=None) -> list[int]:
    """`count` greedy tokens; `between(seq)` runs after every step."""
    seq = eager(engine.create(len(prompt) + count + 4))
    feed(engine, seq, prompt, chunk)
    out = [engine.select(seq, GREEDY).token]
    while len(out) < count:
        if between is not None:
            between(seq)
        out += [s.token for s in engine.step(seq, out[-1], GREEDY, drafts)]
    engine.release(seq)
    return out[:count]


def random_ids(seed, count, below=490) -> list[int]:
    return torch.randint(0, below, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
