"""The draft head: its logits, its acceptance on the embedded model, and the choice of a width."""

import torch
from carousel_server.engine import EMBEDDED
from carousel_server.engine.mtp import PROBE, DraftCost, DraftWidth
from tokenizers import Tokenizer

from tests.model.engine_kit import GREEDY, feed, open_engine

TOLERANCE = 5e-4
CHATS = (
    "What is 17 plus 25?",
    "Spell the word garden.",
    "Tell me a short story about a fox.",
    "List three colours.",
    "Which day comes after Monday?",
    "Repeat after me: the river is wide and cold.",
)


def test_draft_logits_of_every_prompt_row_and_of_the_second_step_agree_with_the_reference(tiny, golden):
    engine = open_engine(tiny)
    for name in ("one", "short", "len4", "mid_eos", "sparse", "long"):
        ids, first = golden[f"{name}.ids"].tolist(), int(golden[f"{name}.greedy"][0])
        seq = engine.create(len(ids) + 8)
        slot = seq.slot
        with torch.inference_mode():
            slot.tokens[: len(ids)] = torch.tensor(ids)
            hidden = engine.model.forward(slot, 0, len(ids), rewindable=False)
            assert (hidden.flatten(1) - golden[f"{name}.hidden_multi"]).abs().max() <= 5e-3
            streams = engine.model.draft(slot, torch.tensor([*ids[1:], first]), hidden, 0)
            logits = engine.model.draft_logits(streams)
            second = engine.model.draft(slot, logits[-1:].argmax(-1), streams[-1:], len(ids))
            worst = (logits - golden[f"{name}.mtp_logits"]).abs().max().item()
            later = (engine.model.draft_logits(second) - golden[f"{name}.mtp_step2_logits"]).abs().max().item()
        print(f"{name}: draft logits {worst:.1e}, second step {later:.1e}")
        assert worst <= TOLERANCE
        assert later <= TOLERANCE
        engine.release(seq)


def test_the_rows_that_the_engine_fills_are_those_of_the_reference(tiny, golden, reference):
    """Prompt in chunks, then steps with and without drafts: the next proposal is what the reference's head says."""
    engine = open_engine(tiny)
    ids = golden["long.ids"].tolist()
    seq = engine.create(len(ids) + 40)
    feed(engine, seq, ids, 50)
    token = engine.select(seq, GREEDY).token
    for drafts in (0, 2, 0, 0, 3, 1):
        token = engine.step(seq, token, GREEDY, drafts)[-1].token
    with torch.inference_mode():
        proposed = engine._propose(seq, seq.slot, token, 1)
    _, hidden = reference.forward(seq.tokens)
    expected, _ = reference.mtp([*seq.tokens[1:], token], hidden)
    assert proposed == [int(expected[-1].argmax())]


def test_acceptance_on_the_embedded_model_is_high():
    engine = open_engine("embedded", context_tokens=1024, slots=1)
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    for width in (1, 2, 3):
        proposed, accepted, steps, tokens = engine.stats.drafts_proposed, engine.stats.drafts_accepted, 0, 0
        for chat in CHATS:
            text = f"<|im_start|>user\n{chat}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
            seq = engine.create(400)
            engine.prefill(seq, tokenizer.encode(text).ids)
            token = engine.select(seq, GREEDY).token
            for _ in range(40):
                if token in engine.info.stop_tokens:
                    break
                chosen = engine.step(seq, token, GREEDY, width)
                assert all(s.token not in engine.info.stop_tokens for s in chosen[:-1])
                token, steps, tokens = chosen[-1].token, steps + 1, tokens + len(chosen)
            engine.release(seq)
        proposed, accepted = engine.stats.drafts_proposed - proposed, engine.stats.drafts_accepted - accepted
        print(f"width {width}: {accepted} of {proposed} drafts accepted, {tokens / steps:.2f} tokens a step")
        assert accepted > 0.6 * proposed > 0


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
