"""The draft head: its logits, its acceptance on the embedded model, and the choice of a width."""

import random

import pytest
import torch
from carousel_server.engine import EMBEDDED, gpu
from carousel_server.engine.mtp import PROBE, DraftCost, DraftWidth
from tokenizers import Tokenizer

from tests.model.engine_kit import GREEDY, eager, feed, open_engine

TOLERANCE = 5e-4
FIELDS = ("hidden_multi", "mtp_logits", "mtp_hidden_multi", "mtp_step2_logits")
LEAST_ACCEPTANCE = {1: 0.9, 2: 0.6, 3: 0.5}  # of all drafts made, also those behind a wrong one
STREAM_TOLERANCE = 1e-4  # of the largest value in the streams
CHATS = (
    "What is 17 plus 25?",
    "Spell the word garden.",
    "Tell me a short story about a fox.",
    "List three colours.",
    "Which day comes after Monday?",
    "Repeat after me: the river is wide and cold.",
)


def relative(streams, expected):
    """The largest difference of streams [rows, n, H] to [rows, n * H], as a share of the largest value."""
    return float((streams.flatten(1) - expected).abs().max() / expected.abs().max())


def by_the_tie_rule(reference, ids, first):
    """The golden fields of the draft head once more, by this repository's reference."""
    _, hidden = reference.forward(ids)
    logits, streams = reference.mtp([*ids[1:], first], hidden)
    following = [*ids[1:], first, int(logits[-1].argmax())]
    second, _ = reference.mtp(following, torch.cat([hidden, streams[-1:]]))
    return {
        "hidden_multi": hidden,
        "mtp_logits": logits,
        "mtp_hidden_multi": streams,
        "mtp_step2_logits": second[-1:],
    }


def test_draft_logits_of_every_prompt_row_and_of_the_second_step_agree_with_the_reference(tiny, golden, reference):
    """With the golden values; the prompt `ties`, whose golden values know no tie rule, with values made here."""
    engine = open_engine(tiny)
    for name in ("one", "short", "len4", "mid_eos", "sparse", "long", "ties"):
        ids, first = golden[f"{name}.ids"].tolist(), int(golden[f"{name}.greedy"][0])
        stored = {field: golden[f"{name}.{field}"] for field in FIELDS}
        expected = by_the_tie_rule(reference, ids, first) if name == "ties" else stored
        seq = engine.create(len(ids) + 8)
        slot = seq.slot
        with torch.inference_mode():
            slot.tokens[: len(ids)] = torch.tensor(ids)
            hidden = engine.model.forward(slot, 0, len(ids), rewindable=False)
            streams = engine.model.draft(slot, torch.tensor([*ids[1:], first]), hidden, 0)
            logits = engine.model.draft_logits(streams)
            second = engine.model.draft(slot, logits[-1:].argmax(-1), streams[-1:], len(ids))
            worst = (logits - expected["mtp_logits"]).abs().max().item()
            later = (engine.model.draft_logits(second) - expected["mtp_step2_logits"]).abs().max().item()
        engine.release(seq)
        before, after = relative(hidden, expected["hidden_multi"]), relative(streams, expected["mtp_hidden_multi"])
        print(f"{name}: draft logits {worst:.1e}, second step {later:.1e}; streams {before:.1e}, {after:.1e}")
        assert max(worst, later) <= TOLERANCE
        assert max(before, after) <= STREAM_TOLERANCE


@pytest.mark.parametrize(
    ("name", "steps"), [("sparse", ()), ("sparse", (3,)), ("mid_eos", (0, 1, 2)), ("long", (0, 2, 0, 0, 3, 1))]
)
def test_proposals_are_what_the_head_of_the_reference_says(tiny, golden, reference, name, steps):
    """Prompt in chunks, then steps with and without drafts: the next three, each from the streams of the one before."""
    engine = open_engine(tiny)
    ids = golden[f"{name}.ids"].tolist()
    seq = eager(engine.create(len(ids) + 40))
    feed(engine, seq, ids, 50)
    token = engine.select(seq, GREEDY).token
    for drafts in steps:
        token = engine.step(seq, token, GREEDY, drafts)[-1].token
    with torch.inference_mode():
        proposed = engine._propose(seq, seq.slot, token, 3)
    _, hidden = reference.forward(seq.tokens)
    following = [*seq.tokens[1:], token]
    for _ in range(3):
        logits, streams = reference.mtp(following, hidden)
        following.append(int(logits[-1].argmax()))
        hidden = torch.cat([hidden, streams[-1:]])
    assert proposed == following[-3:]


def answers(engine, tokenizer, width, chats=CHATS):
    """(texts of up to 40 tokens for all chats, steps)."""
    texts, steps = [], 0
    for chat in chats:
        text = f"<|im_start|>user\n{chat}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        seq = eager(engine.create(400))
        engine.prefill(seq, tokenizer.encode(text).ids)
        out = [engine.select(seq, GREEDY).token]
        while out[-1] not in engine.info.stop_tokens and len(out) < 40:
            chosen = [s.token for s in engine.step(seq, out[-1], GREEDY, width)]
            assert not engine.info.stop_tokens.intersection(chosen[:-1])
            out, steps = out + chosen, steps + 1
        texts.append(out[:40])
        engine.release(seq)
    return texts, steps


def test_acceptance_on_the_embedded_model_is_high_and_drafts_change_no_answer():
    engine = open_engine("embedded", context_tokens=1024, slots=1)
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    expected, plain = answers(engine, tokenizer, 0)
    for width, least in LEAST_ACCEPTANCE.items():
        proposed, accepted = engine.stats.drafts_proposed, engine.stats.drafts_accepted
        texts, steps = answers(engine, tokenizer, width)
        proposed, accepted = engine.stats.drafts_proposed - proposed, engine.stats.drafts_accepted - accepted
        print(f"width {width}: {accepted} of {proposed} drafts accepted, {plain / steps:.2f} tokens a step")
        assert texts == expected
        assert accepted > least * proposed > 0


def test_the_width_follows_the_acceptance():
    width = DraftWidth()
    for _ in range(30):
        width.observe(3, 3)
    assert width.choose(3) == 3
    assert width.choose(1) == 1
    for _ in range(30):
        width.observe(2, 0)
    assert width.choose(3) == 0
    assert [width.choose(3) for _ in range(PROBE)].count(1) == 1  # now and then it tries again


def test_a_draft_behind_a_wrong_one_says_nothing():
    one, three = DraftWidth(), DraftWidth()
    one.observe(1, 0)
    three.observe(3, 0)
    assert one.acceptance == three.acceptance


def test_dear_drafts_are_not_made():
    width = DraftWidth(DraftCost(draft=1.0, row=1.0))
    assert width.choose(3) == 0


def test_unlucky_drafts_do_not_end_drafting_on_a_gpu_and_lucky_ones_bring_it_back():
    width, draw, widths = DraftWidth(gpu.COST), random.Random(1), []
    for _ in range(2000):
        proposed = width.choose(2)
        widths.append(proposed)
        accepted = next((i for i in range(proposed) if draw.random() > 0.75), proposed)
        width.observe(proposed, accepted)
    assert widths.count(0) < 400
    assert max(widths[-200:]) == 2
    while width.choose(2) > 0:
        width.observe(1, 0)
    tried = [width.choose(2) for _ in range(4 * PROBE)]
    assert (tried.count(1), tried.count(0)) == (4, 4 * PROBE - 4)
    for _ in range(10):
        width.observe(1, 1)
    assert width.choose(2) > 0
