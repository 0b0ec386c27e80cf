"""The GPU engine against the fp32 definition at the real shapes, before anything is timed.

`check` builds an 8-layer model (n-gram base 200,000) and compares logits of a prefill and of decode steps with the
plain
torch model in fp32 on the same device; it raises when they are further apart than the tolerances below.
"""

from collections.abc import Sequence

import torch
from carousel_server.engine.model import Model
from carousel_server.engine.protocol import SamplerParams
from carousel_server.engine.state import StatePool
from carousel_server.engine.weights import Attention, Delta, Experts, Layer, Mixer, Ngram, Weights
from torch import Tensor

from tests.bench.gpu_random_model import DEVICE, Bench, build, released

DECODE = 2e-3  # fp32 activations, bf16 caches
PREFILL = 6e-2  # bf16 activations
STEPS = 24


class Widened(Sequence[Tensor]):
    """Experts as fp32 matrices, made when asked for."""

    def __init__(self, bench: Bench, which: str) -> None:
        self.bench, self.which = bench, which

    def __len__(self) -> int:
        return self.bench.stored.shape[0]

    def __getitem__(self, e):  # type: ignore[no-untyped-def]
        c = self.bench.engine.config
        i, h = c.expert_width, c.hidden
        bi, bh = -(-i // 128), -(-h // 128)
        values, scales = self.bench.stored[e].float(), self.bench.scales[e]
        if self.which == "gate_up":
            s = scales[: 2 * bi * bh].view(2, bi, bh).repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :i, :h]
            return (values[: 2 * i * h].view(2, i, h) * s).view(2 * i, h)
        s = scales[2 * bi * bh :].view(bh, bi).repeat_interleave(128, 0).repeat_interleave(128, 1)[:h, :i]
        return values[2 * i * h :].view(h, i) * s


def widen(bench: Bench) -> Weights:
    """The bench's weights in fp32."""
    w = bench.weights

    def mixer(m: Mixer) -> Mixer:
        return Mixer(m.scale, m.down.float(), m.up.float())

    def layer(one: Layer, index: int) -> Layer:
        b, e, n = one.block, one.experts, one.ngram
        if isinstance(b, Delta):
            block: Delta | Attention = Delta(b.project.float(), b.taps, b.decay, b.dt_bias, b.scale, b.out.float())
        else:
            block = Attention(b.project.float(), b.q_scale, b.k_scale, b.index_q_scale, b.index_k_scale, b.out.float())
        if n is not None:
            t = bench.engine.forward.tables[index]
            held = t.held[0].view(torch.float8_e4m3fn)
            size = t.height * 160
            shards = [held[(a - t.held[0].data_ptr()) :][:size].view(t.height, 160) for a in t.shards.tolist()]
            n = Ngram(n.multipliers, n.sizes, n.offsets, shards, n.table_scale, n.project.float(),
                      n.key_scale, n.query_scale, n.conv_scale, n.taps)  # fmt: skip
        experts = Experts(e.project.float(), Widened(bench, "gate_up"), Widened(bench, "down"), e.shared_down.float())
        return Layer(n, mixer(one.block_mixer), block, mixer(one.experts_mixer), experts)

    layers = tuple(layer(one, i) for i, one in enumerate(w.layers))
    return Weights(w.embedding, layers, mixer(w.mixer), w.head.float(), None)


def check(pool_bytes: int | None = None) -> dict[str, float]:
    """Largest relative errors of logits; raises AssertionError beyond the tolerances."""
    c = released(layers=8, ngram_base=200_000)
    bench = build(c, context=3072, pool_bytes=pool_bytes, host_layers=1, table_bytes=2**28, slots=2, skew=0.7)
    engine = bench.engine
    with torch.inference_mode():
        states = StatePool(c, slots=1, capacity=3072, drafts=0, device=torch.device("cuda"))
        model = Model(c, widen(bench), capacity=3072, device=DEVICE)
        embed = model._embed
        model._embed = lambda tokens: embed(tokens.to(DEVICE))  # type: ignore[method-assign]
        slot = states.slots[0]
        slot.clear()
        tokens = torch.randint(0, 248000, (2100,), generator=torch.Generator().manual_seed(1)).tolist()
        errors = {"prefill": 0.0, "decode": 0.0}
        seq = engine.create(3072)
        first = 2040
        engine.prefill(seq, tokens[:first])
        slot.tokens[:2100] = torch.tensor(tokens, device=DEVICE)
        # states of the reference come from fp32; the engine's prefill from bf16: decode is compared after a decode
        # start
        wanted = forward(model, slot, first)
        errors["prefill"] = off(engine.state.logits[seq.slot], wanted[-1])
        engine.release(seq)
        slot.clear()
        seq = engine.create(3072)
        for t, row in enumerate(forward(model, slot, STEPS)):
            engine.step(seq, tokens[t], SamplerParams(), 0)
            errors["decode"] = max(errors["decode"], off(engine.state.logits[seq.slot], row))
    assert errors["decode"] < DECODE, errors
    assert errors["prefill"] < PREFILL, errors
    return errors


def forward(model: Model, slot, rows: int) -> Tensor:  # type: ignore[no-untyped-def]
    """Logits [STEPS, V] of the last rows of a prompt, from the definition; more rows than the CPU's bound operators
    take."""
    return model.logits(model.forward(slot, 0, rows, rewindable=False)[-STEPS:])


def off(found: Tensor, wanted: Tensor) -> float:
    """Relative error; NaN is infinite."""
    error = float((found.double() - wanted.double()).norm() / wanted.double().norm())
    return error if error == error else float("inf")
