"""Sequences through every way of feeding, saving and forking them: the same greedy tokens, the same bits."""

import dataclasses

import pytest
import torch
from carousel_server.engine.protocol import EngineError, SamplerParams

from tests.model.engine_kit import GREEDY, LEAST_GAP, eager, feed, greedy, kept_logits, open_engine, random_ids

TOKENS = 64


@pytest.fixture(scope="module")
def engine(tiny):
    return open_engine(tiny)


@pytest.fixture(scope="module")
def prompts(engine):
    """Two prompts, below and beyond the sparse budget, whose best two logits are apart at every step."""
    found = []
    for length in (12, 140):  # the longer one is more than two chunks of 64
        for seed in range(200):
            ids = random_ids(1000 * length + seed, length)
            seq = engine.create(length + TOKENS)
            feed(engine, seq, ids, 64)
            chosen, gaps = engine.select(seq, SamplerParams(top_logprobs=2)), []
            while True:
                gaps.append(chosen.top[0][1] - chosen.top[1][1])
                if gaps[-1] <= 2 * LEAST_GAP or len(gaps) == TOKENS:
                    break
                chosen = engine.step(seq, chosen.token, SamplerParams(top_logprobs=2), 0)[0]
            engine.release(seq)
            if min(gaps) > 2 * LEAST_GAP:
                found.append(ids)
                break
    assert len(found) == 2
    return found


@pytest.fixture(scope="module")
def expected(engine, prompts):
    return [greedy(engine, ids, TOKENS) for ids in prompts]


def test_without_a_cache_the_same_tokens(engine, prompts, expected):
    ids, out = list(prompts[0]), []
    for _ in range(TOKENS):
        seq = engine.create(len(ids))
        engine.prefill(seq, ids)
        out.append(engine.select(seq, GREEDY).token)
        engine.release(seq)
        ids.append(out[-1])
    assert out == expected[0]


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_any_chunk_size_gives_the_same_tokens(engine, prompts, expected, chunk):
    assert [greedy(engine, ids, TOKENS, chunk=chunk) for ids in prompts] == expected


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_drafts_give_the_same_tokens(engine, prompts, expected, drafts):
    before = engine.stats.drafts_proposed
    assert [greedy(engine, ids, TOKENS, drafts=drafts) for ids in prompts] == expected
    print(f"{engine.stats.drafts_proposed - before} drafts for {2 * TOKENS} tokens")
    assert engine.stats.drafts_proposed - before > drafts * TOKENS


@pytest.mark.parametrize(("right", "wrong"), [(0, 3), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0)])
def test_drafts_that_are_right_so_far_and_then_wrong_give_the_same_tokens(
    engine, prompts, expected, right, wrong, monkeypatch
):
    """The random head is hardly ever right, so its proposals are replaced by ones of which `right` will be accepted."""
    propose = engine._propose
    for ids, text in zip(prompts, expected, strict=True):

        def known(seq, slot, token, width, ids=ids, text=text):
            propose(seq, slot, token, width)
            at = seq.length - len(ids) + 1  # of the text: behind `token`, which is pending
            return [*text[at : at + right], *((t + 1) % 490 for t in text[at + right : at + right + wrong])]

        monkeypatch.setattr(engine, "_propose", known)
        before = dataclasses.replace(engine.stats)
        assert greedy(engine, ids, TOKENS, drafts=right + wrong) == text
        steps = TOKENS // (right + 1)
        assert engine.stats.drafts_accepted - before.drafts_accepted >= right * (steps - 1)
        assert engine.stats.drafts_proposed - before.drafts_proposed >= (right + wrong) * (steps - 2)


@pytest.mark.parametrize("drafts", [0, 2])
def test_saved_and_restored_after_every_step_the_same_tokens(engine, prompts, expected, drafts):
    def swap(seq):
        before = kept_logits(engine, seq)
        engine.suspend(seq)
        assert not seq.live
        engine.resume(seq)
        assert torch.equal(kept_logits(engine, seq), before)

    assert [greedy(engine, ids, TOKENS, drafts=drafts, between=swap) for ids in prompts] == expected


@pytest.mark.parametrize("slots", [1, 2])
def test_two_interleaved_sequences_do_not_touch_each_other(tiny, prompts, expected, slots):
    engine = open_engine(tiny, slots=slots, drafts=2)
    seqs, outs = [], []
    for ids in prompts:
        if not engine.free_slots():
            engine.suspend(seqs[-1])
        seq = eager(engine.create(len(ids) + TOKENS + 4))
        feed(engine, seq, ids, 64)
        seqs.append(seq)
        outs.append([engine.select(seq, GREEDY).token])
    while any(len(out) < TOKENS for out in outs):
        for seq, other, out in zip(seqs, reversed(seqs), outs, strict=True):
            if not seq.live:
                if other.live:
                    engine.suspend(other)
                engine.resume(seq)
            if len(out) < TOKENS:
                out += [s.token for s in engine.step(seq, out[-1], GREEDY, 2)]
    assert [out[:TOKENS] for out in outs] == expected


def state_bits(seq):
    """Everything of a live sequence that a later row can depend on."""
    slot, bits = seq.slot, []
    for part, length in ((slot.main, seq.length), (slot.draft, seq.drafted)):
        bits += [g.upto(length).clone() for g in part.grown]
        bits += [r.rows.index_select(0, r.places(length)) for r in part.rings]
    return bits


def test_save_and_restore_are_bit_exact_and_take_the_bytes_that_were_announced(engine):
    for length in (1, 3, 40, 61):
        seq = engine.create(100)
        feed(engine, seq, random_ids(length, length), 16)
        for token in (5, 6):
            engine.step(seq, token, GREEDY, 0)
        engine.snapshot(seq)  # the draft head has caught up
        before = state_bits(seq)
        other = engine.create(20)
        engine.suspend(seq)
        announced = engine.info.fixed_state_bytes + engine.info.token_state_bytes * 100
        assert seq.saved.nbytes + seq.saved_draft.nbytes <= announced
        engine.prefill(other, [1, 2, 3])  # dirties the state of the slot that the restore may get
        engine.release(other)
        engine.resume(seq)
        assert all(torch.equal(a, b) for a, b in zip(before, state_bits(seq), strict=True))
        snapshot = engine.snapshot(seq)
        exact = engine.info.fixed_state_bytes + engine.info.token_state_bytes * seq.length
        assert 0.8 * exact < snapshot.nbytes <= exact
        engine.release(seq)


def test_a_second_save_writes_only_new_rows(engine):
    seq = engine.create(100)
    feed(engine, seq, random_ids(1, 40), 64)
    engine.suspend(seq)
    with torch.inference_mode():
        seq.saved.grown[1][:, :40] += 1.0  # a mark in the host copy of the first layer's keys
    engine.resume(seq)
    engine.step(seq, 7, GREEDY, 0)
    keys = seq.slot.main.grown[1].rows
    marked = keys[:, :40].clone()
    with torch.inference_mode():
        keys[:, :40] -= 1.0
    engine.suspend(seq)
    assert torch.equal(seq.saved.grown[1][:, :40], marked)
    assert seq.saved.length == 41
    engine.release(seq)


def test_a_fork_goes_on_like_its_origin_and_does_not_follow_it(engine, prompts, expected):
    origin = engine.create(len(prompts[1]) + TOKENS)
    feed(engine, origin, prompts[1], 64)
    snapshot = engine.snapshot(origin)
    for token in (1, 2, 3, 4, 5):
        engine.step(origin, token, GREEDY, 0)
    fork = eager(engine.create(len(prompts[1]) + TOKENS + 4))
    engine.adopt(fork, snapshot)
    assert fork.length == len(prompts[1])
    out = [engine.select(fork, GREEDY).token]
    while len(out) < TOKENS:
        out += [s.token for s in engine.step(fork, out[-1], GREEDY, 2)]
    assert out[:TOKENS] == expected[1]
    engine.release(origin)
    engine.release(fork)


def test_a_snapshot_without_draft_rows_serves_with_drafts_off(tiny, engine, prompts, expected):
    plain = open_engine(tiny, drafts=0)
    seq = plain.create(len(prompts[0]))
    feed(plain, seq, prompts[0], 64)
    fork = engine.create(len(prompts[0]) + TOKENS + 4)
    source = engine.create(len(prompts[0]))
    feed(engine, source, prompts[0], 64)
    engine.adopt(fork, dataclasses.replace(engine.snapshot(source), draft=None))
    proposed = engine.stats.drafts_proposed
    out = [engine.select(fork, GREEDY).token]
    while len(out) < TOKENS:
        out += [s.token for s in engine.step(fork, out[-1], GREEDY, 3)]
    assert out[:TOKENS] == expected[0]
    assert engine.stats.drafts_proposed == proposed
    for one in (source, fork):
        engine.release(one)


def test_rows_can_be_taken_back_as_far_as_their_states_are_kept(engine, prompts, expected):
    seq = engine.create(200)
    feed(engine, seq, prompts[1], 64)
    start = seq.length
    engine.step(seq, expected[1][0], GREEDY, 0)
    for token in (1, 2):
        engine.step(seq, token, GREEDY, 0)
    engine.rollback(seq, start + 1)
    assert engine.select(seq, GREEDY).token == expected[1][1]
    assert engine.step(seq, expected[1][1], GREEDY, 0)[0].token == expected[1][2]
    with pytest.raises(EngineError, match=r"cannot go back to 3 rows: states of \d+ to \d+"):
        engine.rollback(seq, 3)
    engine.release(seq)


def test_calls_that_cannot_be_honoured_say_why(engine):
    seq = engine.create(4)
    with pytest.raises(EngineError, match="the sequence is empty: prefill before select"):
        engine.select(seq, GREEDY)
    with pytest.raises(EngineError, match="5 more rows after 0 exceed the capacity of 4"):
        engine.prefill(seq, [1, 2, 3, 4, 5])
    with pytest.raises(EngineError, match="token ids 1 to 600 are outside 0 to 511"):
        engine.prefill(seq, [1, 600])
    with pytest.raises(EngineError, match="capacity 513 is not between 1 and the context of 512"):
        engine.create(513)
    engine.prefill(seq, [1, 2, 3])
    assert len(engine.step(seq, 5, GREEDY, 3)) == 1  # the last row of the capacity leaves no room for drafts
    with pytest.raises(EngineError, match="1 more rows after 4 exceed the capacity of 4"):
        engine.step(seq, 5, GREEDY, 3)
    others = [engine.create(4) for _ in range(engine.free_slots())]
    with pytest.raises(EngineError, match="all 2 state slots are taken"):
        engine.create(4)
    for one in (seq, *others):
        engine.release(one)
        engine.release(one)
    assert engine.free_slots() == 2
    with pytest.raises(EngineError, match="released"):
        engine.prefill(seq, [1])
    mask = torch.zeros(512, dtype=torch.bool)
    seq = engine.create(4)
    engine.prefill(seq, [1])
    with pytest.raises(EngineError, match="the mask allows no token"):
        engine.select(seq, SamplerParams(mask=mask))
    engine.release(seq)
