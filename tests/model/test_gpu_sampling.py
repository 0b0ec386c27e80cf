"""Selections of the GPU engine: on a GPU at the real size, and interpreted through the engine's calls."""

import os
import random
from pathlib import Path

import pytest
import torch
from carousel_kernels import sampling
from carousel_kernels.sampling import triton as kernels
from carousel_server.engine import gpu_start
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.protocol import EngineError, SamplerParams

from tests.model.gpu_files import released_layout
from tests.model.sampling_cases import adjusted, real_case

VOCAB, VALID = 248_320, 248_077
interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="for kernels that are interpreted")


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> GpuEngine:
    folder: Path = released_layout(tmp_path_factory.mktemp("released"))
    return gpu_start.start(
        folder,
        context_tokens=64,
        slots=2,
        drafts=0,
        prefill_rows=64,
        expert_pool_bytes=None,
        device=torch.device("cpu"),
    )


def wanted(engine: GpuEngine, seq, params: SamplerParams, tokens: list[int]) -> int:
    """The definition over the logits that the engine kept, and the counts of the tokens."""
    logits = engine.state.logits[seq.slot]
    counts = torch.bincount(torch.tensor(tokens), minlength=engine.info.vocab_size).int()
    x = sampling.adjust(
        logits,
        engine.info.valid_tokens,
        mask=params.mask,
        bias=params.bias,
        counts=None if params.counts is None else counts,
        repetition=params.repetition_penalty,
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
    )
    settings = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p", "uniform")}
    return int(sampling.choose(x, **settings))


def several(engine: GpuEngine, seed: int) -> list[SamplerParams]:
    """Every feature alone and together."""
    vocab, draw = engine.info.vocab_size, torch.Generator().manual_seed(seed)
    bias, mask = torch.randn(vocab, generator=draw), torch.rand(vocab, generator=draw) < 0.3
    counts = torch.zeros(vocab, dtype=torch.int32)  # the values are those of the engine's own rows
    penalties = {"repetition_penalty": 1.5, "frequency_penalty": 0.4, "presence_penalty": 0.2, "counts": counts}
    return [
        SamplerParams(temperature=0.9, uniform=0.3),
        SamplerParams(bias=bias),
        SamplerParams(temperature=1.2, top_k=30, top_p=0.8, min_p=0.05, uniform=0.7),
        SamplerParams(mask=mask),
        SamplerParams(**penalties),
        SamplerParams(temperature=1.0, top_p=0.95, uniform=0.99, mask=mask, bias=-bias, **penalties),
    ]


@interpreted
def test_each_step_and_each_selection_chooses_by_the_definition(engine):
    seq, tokens = engine.create(64), [5, 9, 5]
    engine.prefill(seq, tokens)
    params = several(engine, 1)
    for one in params:
        assert engine.select(seq, one).token == wanted(engine, seq, one, tokens)
    for one in (params[-1], params[-2]):  # two graphs, one graph
        tokens.append(5)
        assert [found.token for found in engine.step(seq, 5, one, 3)] == [wanted(engine, seq, one, tokens)]
    assert seq.length == 5
    engine.release(seq)


@interpreted
def test_log_probabilities_come_with_a_selection_and_with_a_greedy_step(engine):
    seq, params = engine.create(16), SamplerParams(temperature=1.0, uniform=0.9, top_logprobs=4)
    engine.prefill(seq, [3])
    rows, found = [engine.state.logits[seq.slot].clone()], [engine.select(seq, params)]
    found += engine.step(seq, 5, SamplerParams(top_logprobs=20), 0)
    rows.append(engine.state.logits[seq.slot])
    for one, row, top in zip(found, rows, (4, 20), strict=True):
        logprob, pairs = sampling.logprobs(row, engine.info.valid_tokens, one.token, top)
        assert one.logprob == pytest.approx(logprob, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in pairs]
        assert [value for _, value in one.top] == pytest.approx([value for _, value in pairs], abs=1e-5)
    with pytest.raises(EngineError, match="21 log probabilities"):
        engine.select(seq, SamplerParams(top_logprobs=21))
    engine.release(seq)


@interpreted
def test_counts_and_bias_are_the_sequences_own_wherever_it_lives(engine):
    prompts, params = [[5, 9, 5], [7, 7]], several(engine, 2)
    biased = [params[1], SamplerParams(bias=params[1].bias.flip(0))]
    seqs = [engine.create(32), engine.create(32)]
    for seq, prompt in zip(seqs, prompts, strict=True):
        engine.prefill(seq, prompt)
    for seq in seqs:
        engine.suspend(seq)
    for seq in reversed(seqs):
        engine.resume(seq)
    for seq, prompt, bias in zip(seqs, prompts, biased, strict=True):
        for one in (params[4], bias):
            assert engine.select(seq, one).token == wanted(engine, seq, one, prompt)
    for seq in seqs:
        engine.release(seq)


@interpreted
def test_a_mask_that_allows_nothing_is_an_error_of_the_selection_and_of_the_step(engine):
    seq, none = engine.create(16), torch.zeros(engine.info.vocab_size, dtype=torch.bool)
    engine.prefill(seq, [1])
    with pytest.raises(EngineError, match="the mask allows no token"):
        engine.select(seq, SamplerParams(mask=none))
    assert engine.select(seq, SamplerParams()).token >= 0
    with pytest.raises(EngineError, match="the mask allows no token"):
        engine.step(seq, 4, SamplerParams(mask=none), 0)
    engine.release(seq)


@interpreted
def test_logits_that_are_no_numbers_fail_a_selection(engine):
    seq = engine.create(16)
    engine.prefill(seq, [1])
    with torch.inference_mode():
        engine.state.logits[seq.slot].fill_(torch.nan)
    with pytest.raises(EngineError, match="the logits of row 0 are not numbers"):
        engine.select(seq, SamplerParams(temperature=1.0))
    engine.release(seq)


@pytest.mark.gpu
def test_200_selections_of_the_real_vocabulary_are_the_definitions():
    work = kernels.Work.empty(VOCAB, torch.device("cuda"))
    same = 0
    for seed in range(200):
        case = real_case(seed, VOCAB, VALID)
        same += case.found(work) == case.wanted()
        if seed < 20:
            assert torch.equal(adjusted(work, VALID), case.adjusted() + 0.0)
    print(f"{same} of 200 selections are the definition's")
    assert same >= 199  # an exponential's last bit may move a border of the draw by 2**-42


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 5])
def test_a_selection_of_the_real_vocabulary_is_the_same_each_time(bits):
    work = kernels.Work.empty(VOCAB, torch.device("cuda"), bits=bits)
    for seed in range(5):
        case = real_case(seed, VOCAB, VALID)
        assert len({case.found(work) for _ in range(20)}) == 1
        masses = work.mass.clone()
        case.found(work)
        assert torch.equal(masses[:VALID], work.mass[:VALID])


@pytest.mark.gpu
def test_captured_steps_choose_what_eager_ones_choose():
    from carousel_server.engine import EMBEDDED, load

    captured = load("embedded", context_tokens=1024, slots=1, drafts=0, device="cuda")
    eager = gpu_start.start(EMBEDDED, context_tokens=1024, slots=1, drafts=0, graphs=False)
    draw = random.Random(5)
    prompt = [draw.randrange(0, 3000) for _ in range(200)]
    uniforms = [draw.random() for _ in range(60)]
    texts = []
    for engine in (captured, eager):
        params, seq = several(engine, 3), engine.create(1024)
        engine.prefill(seq, prompt)
        out = [engine.select(seq, params[0]).token]
        for i, uniform in enumerate(uniforms):
            one = params[i % len(params)]
            sampler = SamplerParams(**{**vars(one), "uniform": uniform})
            out.append(engine.step(seq, out[-1], sampler, 0)[0].token)
        engine.release(seq)
        texts.append(out)
    assert texts[0] == texts[1]
