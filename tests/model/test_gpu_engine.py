"""The GPU engine with the embedded model against the CPU engine."""

import random

import pytest
import torch
from carousel_server.engine.protocol import SamplerParams

from tests.model.engine_kit import GREEDY, draft_rows, drafted, eager

pytestmark = pytest.mark.gpu

CLEAR = 1e-3  # a top-two gap below this is no test of an argmax


@pytest.fixture(scope="module")
def cpu():
    from carousel_server.engine import load

    return load("embedded", context_tokens=2048, slots=2, drafts=2)


@pytest.fixture(scope="module")
def gpu():
    from carousel_server.engine import load

    torch.backends.cuda.matmul.allow_tf32 = False
    return load("embedded", context_tokens=2048, slots=3, drafts=3, device="cuda")


def prompts(count, shortest=1, longest=600):
    draw = random.Random(7)
    return [[draw.randrange(0, 3000) for _ in range(draw.randint(shortest, longest))] for _ in range(count)]


def cpu_logits(engine, seq):
    return seq.slot.logits[(seq.length - 1) % engine.pool.steps]


def test_twenty_prompts_of_256_teacher_forced_tokens_have_the_cpu_engines_argmax(cpu, gpu):
    skipped = steps = 0
    worst = 0.0
    for prompt in prompts(20):
        a, b = gpu.create(1024), cpu.create(1024)
        gpu.prefill(a, prompt)
        cpu.prefill(b, prompt)
        for _ in range(256):
            wanted = cpu_logits(cpu, b)
            found = gpu.state.logits[a.slot].cpu()
            worst = max(worst, float((found - wanted).norm() / wanted.norm()))
            top = wanted[: cpu.info.valid_tokens].topk(2)
            token = int(top.indices[0])
            steps += 1
            if float(top.values[0] - top.values[1]) < CLEAR:
                skipped += 1
            else:
                assert int(found[: cpu.info.valid_tokens].argmax()) == token
            gpu.step(a, token, GREEDY, 0)
            cpu.step(b, token, GREEDY, 0)
        gpu.release(a)
        cpu.release(b)
    print(f"{steps} steps, {skipped} skipped, largest relative error of logits {worst:.1e}")
    assert skipped <= 0.02 * steps
    assert worst < 1e-3


def text(engine, prompt, count, drafts, between=lambda seq: seq):
    seq = eager(engine.create(1024))
    engine.prefill(seq, prompt)
    out = [engine.select(seq, GREEDY).token]
    while len(out) < count:
        out += [s.token for s in engine.step(seq, out[-1], GREEDY, drafts)]
        seq = between(seq)
    engine.release(seq)
    return out[:count]


def test_drafts_change_nothing_but_the_number_of_steps(gpu):
    before = gpu.stats.drafts_accepted
    for prompt in prompts(6, 1, 300):
        plain = text(gpu, prompt, 100, 0)
        for drafts in (1, 2, 3):
            assert text(gpu, prompt, 100, drafts) == plain
    assert gpu.stats.drafts_accepted > before


@pytest.mark.parametrize("kind", ["plain", "sampled", "masked", "penalised"])
@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_drafts_after_steps_without_them_are_those_of_a_sequence_that_always_drafted(gpu, kind, drafts):
    """25 steps without drafts, with saves between them and a snapshot behind them; then the same rows, drafts and text,
    to the bit."""
    allowed = torch.ones(gpu.info.vocab_size, dtype=torch.int32)
    sampler = {
        "plain": GREEDY,
        "sampled": SamplerParams(temperature=1.0, uniform=0.5),
        "masked": SamplerParams(mask=allowed == 1),
        "penalised": SamplerParams(presence_penalty=0.5, counts=allowed),
    }[kind]
    for prompt in prompts(2, 40, 400):
        always, proposed, first = eager(gpu.create(1024)), {}, len(prompt)
        gpu.prefill(always, prompt)
        said = [gpu.select(always, GREEDY).token]
        while len(said) < 100:
            at = always.length
            chosen, proposed[at] = drafted(gpu, always, said[-1], drafts)
            said += chosen
        seq = gpu.create(first + 26)
        gpu.prefill(seq, prompt)
        for i, token in enumerate(said[:25]):
            gpu.step(seq, token, sampler, 0)
            if i % 7 == 2:
                gpu.suspend(seq)
                gpu.resume(seq)
        gpu.step(seq, said[25], GREEDY, drafts)  # the last row of its capacity: no draft fits
        assert seq.length == seq.capacity
        later = eager(gpu.create(1024))
        gpu.adopt(later, gpu.snapshot(seq))
        made, accepted = gpu.stats.drafts_proposed, gpu.stats.drafts_accepted
        while later.length < first + 90:
            at = later.length
            chosen, mine = drafted(gpu, later, said[at - first], drafts)
            assert chosen == said[at - first + 1 :][: len(chosen)]
            assert mine == proposed.get(at, mine)
        made, accepted = gpu.stats.drafts_proposed - made, gpu.stats.drafts_accepted - accepted
        print(f"{kind}, {drafts} drafts: {accepted} of {made} accepted")
        assert made > 0
        known = min(s.length - s.waiting for s in (later, always))
        assert known > first + 60
        for found, wanted in zip(draft_rows(gpu, later, known), draft_rows(gpu, always, known), strict=True):
            assert torch.equal(found, wanted)
        for one in (always, seq, later):
            gpu.release(one)


def test_a_prompt_behind_rows_that_wait_for_the_draft_head_leaves_none_of_them_out(gpu):
    prompt, more = prompts(2, 50, 200)
    for plain in range(6):
        whole, parts = gpu.create(1024), gpu.create(1024)
        gpu.prefill(whole, [*prompt, *range(5, 5 + plain), *more])
        gpu.prefill(parts, prompt)
        for token in range(5, 5 + plain):
            gpu.step(parts, token, GREEDY, 0)
        gpu.prefill(parts, more)
        rows = whole.length - 1
        assert (parts.length, parts.waiting) == (whole.length, 1)
        for found, wanted in zip(draft_rows(gpu, parts, rows), draft_rows(gpu, whole, rows), strict=True):
            assert torch.allclose(found, wanted, rtol=1e-2, atol=1e-2)
        gpu.release(whole)
        gpu.release(parts)


def test_a_suspended_sequence_goes_on_bit_for_bit_in_another_slot(gpu):
    for drafts in (0, 2):
        for prompt in prompts(3, 5, 400):
            plain = text(gpu, prompt, 60, drafts)

            def through_host_memory(seq):
                gpu.suspend(seq)
                other = gpu.create(16)  # takes the slot that was just left
                gpu.resume(seq)
                gpu.release(other)
                return seq

            assert text(gpu, prompt, 60, drafts, through_host_memory) == plain
            seq = gpu.create(1024)
            gpu.prefill(seq, prompt)
            gpu.step(seq, 5, GREEDY, 0)
            logits = gpu.state.logits[seq.slot].clone()
            gpu.suspend(seq)
            gpu.resume(seq)
            assert torch.equal(gpu.state.logits[seq.slot], logits)
            gpu.release(seq)


def test_an_adopted_snapshot_continues_as_the_sequence_it_was_taken_from(gpu):
    for drafts in (0, 2):
        prompt = prompts(1, 100, 200)[0]
        seq = eager(gpu.create(1024))
        gpu.prefill(seq, prompt)
        token = gpu.select(seq, GREEDY).token
        for _ in range(10):
            token = gpu.step(seq, token, GREEDY, drafts)[-1].token
        copy = gpu.snapshot(seq)
        first = [token]
        for _ in range(20):
            first += [s.token for s in gpu.step(seq, first[-1], GREEDY, drafts)]
        other = eager(gpu.create(1024))
        gpu.adopt(other, copy)
        second = [gpu.select(other, GREEDY).token]
        assert second == [token]
        for _ in range(20):
            second += [s.token for s in gpu.step(other, second[-1], GREEDY, drafts)]
        shorter = min(len(first), len(second))
        assert first[:shorter] == second[:shorter]
        gpu.release(seq)
        gpu.release(other)


def test_prefill_in_chunks_of_64_is_bitwise_prefill_at_once(gpu):
    prompt = prompts(1, 500, 600)[0]
    a, b = gpu.create(1024), gpu.create(1024)
    gpu.prefill(a, prompt)
    for at in range(0, len(prompt), 64):
        gpu.prefill(b, prompt[at : at + 64])
    assert torch.equal(gpu.state.logits[a.slot], gpu.state.logits[b.slot])
    gpu.release(a)
    gpu.release(b)


def test_interleaved_chats_say_what_they_say_alone(gpu):
    first, second = prompts(2, 50, 300)
    alone = [text(gpu, first, 60, 2), text(gpu, second, 60, 0)]
    seqs, outs = [eager(gpu.create(1024)), eager(gpu.create(1024))], []
    for seq, prompt in zip(seqs, (first, second), strict=True):
        gpu.prefill(seq, prompt)
        outs.append([gpu.select(seq, GREEDY).token])
    while min(map(len, outs)) < 60:
        for seq, out, drafts in zip(seqs, outs, (2, 0), strict=True):
            out += [s.token for s in gpu.step(seq, out[-1], GREEDY, drafts)]
    assert [out[:60] for out in outs] == alone
    for seq in seqs:
        gpu.release(seq)


def test_a_pool_of_few_slots_says_what_all_resident_experts_say(gpu):
    from carousel_server.engine import load

    small = load("embedded", context_tokens=1024, slots=2, drafts=2, device="cuda", expert_pool_bytes=1)
    assert small.pool.slots == 4
    for prompt in prompts(4, 1, 200):
        for drafts in (0, 2):
            assert text(small, prompt, 60, drafts) == text(gpu, prompt, 60, drafts)
    selected, missed = small.pool.counts().sum(0).tolist()
    assert 0 < missed <= selected


@pytest.mark.parametrize("pool_bytes", [None, 1])
def test_an_fp8_checkpoint_from_files_has_the_cpu_engines_logits(tmp_path, pool_bytes):
    from carousel_server.engine import load

    from tests.model.gpu_files import compare, released_layout

    folder = released_layout(tmp_path, layers=8)
    found = load(str(folder), context_tokens=512, slots=1, drafts=0, device="cuda", expert_pool_bytes=pool_bytes)
    assert compare(folder, found, rows=100, steps=40) < 1e-3


def test_200_sampled_tokens_are_the_cpu_engines(cpu, gpu):
    shaped = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "top_logprobs": 3}
    penalised = {"repetition_penalty": 1.2, "frequency_penalty": 0.1, "presence_penalty": 0.2}
    draw, vocab = random.Random(3), cpu.info.vocab_size
    bias = torch.randn(vocab, generator=torch.Generator().manual_seed(3))
    prompt = prompts(1, 50, 60)[0]
    counts = torch.bincount(torch.tensor(prompt), minlength=vocab).to(torch.int32)
    a, b = gpu.create(1024), cpu.create(1024)
    gpu.prefill(a, prompt)
    cpu.prefill(b, prompt)
    x, y = [gpu.select(a, SamplerParams())], [cpu.select(b, SamplerParams())]
    same = 0
    for i in range(200):
        token = y[0].token
        counts[token] += 1
        more = {**penalised, "counts": counts, "bias": bias} if i % 2 else {}
        params = SamplerParams(uniform=draw.random(), **shaped, **more)
        x, y = gpu.step(a, token, params, 0), cpu.step(b, token, params, 0)
        same += x[0].token == y[0].token
        assert abs(x[0].logprob - y[0].logprob) < 1e-2 or x[0].token != y[0].token
    print(f"{same} of 200 draws are the CPU engine's")
    assert same >= 197  # a uniform on the border of two tokens may fall to either side
    gpu.release(a)
    cpu.release(b)


def test_nan_logits_fail_the_request_and_not_the_engine(gpu):
    from carousel_server.engine.protocol import EngineError

    prompt = prompts(1, 20, 30)[0]
    plain = text(gpu, prompt, 20, 0)
    seq = gpu.create(256)
    gpu.prefill(seq, prompt)
    with torch.inference_mode():
        for layer in gpu.state.layers:
            if hasattr(layer, "states"):
                layer.states[seq.slot].fill_(torch.nan)
    with pytest.raises(EngineError, match="not numbers"):
        gpu.step(seq, 5, GREEDY, 0)
    gpu.release(seq)
    assert text(gpu, prompt, 20, 0) == plain


def test_steps_without_graphs_say_what_captured_ones_say(gpu):
    from carousel_server.engine import EMBEDDED, gpu_start

    plain = gpu_start.start(EMBEDDED, context_tokens=1024, slots=1, drafts=3, graphs=False)
    for prompt, drafts in zip(prompts(3, 1, 300), (0, 1, 3), strict=True):
        assert text(plain, prompt, 30, drafts) == text(gpu, prompt, 30, drafts)


def test_a_mask_a_bias_and_penalties_choose_what_the_cpu_engine_chooses(cpu, gpu):
    prompt, draw = prompts(1, 60, 80)[0], torch.Generator().manual_seed(5)
    vocab, valid = cpu.info.vocab_size, cpu.info.valid_tokens
    a, b = gpu.create(256), cpu.create(256)
    gpu.prefill(a, prompt)
    cpu.prefill(b, prompt)
    counts = torch.bincount(torch.tensor(prompt), minlength=vocab).to(torch.int32)
    for _ in range(20):
        params = SamplerParams(
            presence_penalty=0.3,
            frequency_penalty=0.2,
            repetition_penalty=1.3,
            counts=counts,
            bias=torch.randn(vocab, generator=draw),
            mask=torch.rand(vocab, generator=draw) < 0.2,
        )
        x, y = gpu.select(a, params), cpu.select(b, params)
        assert x.token == y.token < valid
        assert params.mask is not None
        assert bool(params.mask[x.token])
        counts[x.token] += 1
        gpu.step(a, x.token, params, 0)
        cpu.step(b, x.token, params, 0)
    gpu.release(a)
    cpu.release(b)
