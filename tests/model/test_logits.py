"""Logits against transformers and the golden values; rows that an exact tie reaches, against the tie rule."""

import pytest
import torch
from carousel_server.engine import EMBEDDED
from carousel_server.engine.protocol import SamplerParams

from tests.model.engine_kit import LEAST_GAP, all_logits, feed, greedy, kept_logits, open_engine, random_ids
from tests.model.oracle.reference_model import Reference

TOLERANCE = 5e-4
MOST_TIED = 0.05  # of the rows of a checkpoint
PROMPTS = ("one", "short", "len4", "mid_eos", "sparse", "long", "ties")
FIELDS = ("ids", "logits", "greedy", "hidden_multi", "mtp_logits", "mtp_hidden_multi", "mtp_step2_logits")
LAYERS = 8  # of both checkpoints; the last one is sparse attention
TINY_RESET, EMBEDDED_RESET = 500, 3024  # the end-of-text tokens


@pytest.fixture(scope="module")
def engine(tiny):
    return open_engine(tiny)


@pytest.fixture(scope="module")
def embedded():
    return open_engine("embedded", context_tokens=2048, slots=1)


def documents(seed, count, reset, below):
    """Random ids with end-of-text tokens in them: first, last, two in a row, behind a block's start and at its end."""
    ids = random_ids(seed, count, below)
    for at in (0, 9, 10, 32, 35, 63, 100, count - 1):
        ids[at] = reset
    return ids


@pytest.fixture(scope="module")
def through_resets(tiny):
    """(ids, logits of transformers): prompts through end-of-text tokens, far beyond the sparse budget of 32 tokens.

    The seeds are the first three of 0 to 26 whose block cuts are free of ties: in the other 24 a cut of the rows
    35 to 59 ends among scores of exactly 0, and nothing behind it could be compared with transformers.
    """
    prompts = [documents(seed, 140, TINY_RESET, 490) for seed in (13, 23, 26)]
    return list(zip(prompts, transformers_logits(tiny, *prompts), strict=True))


def transformers_logits(folder, *prompts):
    from transformers import Qwen4ExpForCausalLM

    model = Qwen4ExpForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return [model(torch.tensor([ids]), use_cache=False).logits[0] for ids in prompts]


def assert_equal_rows(ours, theirs, what):
    worst = (ours - theirs).abs().max().item()
    print(f"{what}: {len(ours)} rows, max |difference| {worst:.1e}")
    assert worst <= TOLERANCE, what
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1)), what


def tied_rows(ties, rows):
    """Which of `rows` an exact tie reaches: its own row and, through the layers above it, every later one."""
    tied = torch.zeros(rows, dtype=torch.bool)
    for layer, row in ties:
        last = layer == f"layers.{LAYERS - 1}.self_attn"
        tied[row : row + 1 if last else rows] = True
    return tied


def compare(engine, reference, ids, expected, what):
    """All rows: with transformers, and those that a tie reaches with the tie rule. How many those are."""
    reference.ties.clear()
    by_rule, _ = reference.forward(ids)
    tied = tied_rows(reference.ties, len(ids))
    assert_equal_rows(all_logits(engine, ids, 1000), torch.where(tied[:, None], by_rule, expected), what)
    return int(tied.sum())


def assert_few_tied(tied, rows, what):
    print(f"{what}: {tied} of {rows} rows reached by an exact tie, {100 * tied / rows:.1f} %")
    assert tied <= MOST_TIED * rows


def test_the_golden_values_are_the_fields_that_tests_compare(golden):
    assert set(golden) == {f"{prompt}.{field}" for prompt in PROMPTS for field in FIELDS}


def test_every_row_of_the_random_checkpoint_agrees_with_transformers(engine, golden, through_resets, reference):
    prompts = {name: (golden[f"{name}.ids"].tolist(), golden[f"{name}.logits"]) for name in PROMPTS}
    prompts |= {f"through resets {i}": pair for i, pair in enumerate(through_resets)}
    tied = {name: compare(engine, reference, *pair, name) for name, pair in prompts.items()}
    assert tied["ties"] > 0  # the prompt that is there for it
    assert_few_tied(sum(tied.values()), sum(len(ids) for ids, _ in prompts.values()), "random checkpoint")


@pytest.mark.parametrize("chunk", [7, 1000])
def test_rows_behind_ties_agree_with_the_tie_rule(engine, reference, chunk):
    for seed in (1, 11):  # ties in the first sparse layer, which reach all rows behind them
        ids = documents(seed, 140, TINY_RESET, 490)
        reference.ties.clear()
        by_rule, _ = reference.forward(ids)
        tied = int(tied_rows(reference.ties, len(ids)).sum())
        assert_equal_rows(all_logits(engine, ids, chunk), by_rule, f"{tied} rows reached by a tie, of {len(ids)}")
        assert tied > len(ids) // 2


def test_every_row_of_the_embedded_model_agrees_with_transformers(embedded, golden):
    """The golden prompts, and one of four times the budget of 256 tokens, which is dense up to 259."""
    prompts = [golden[f"{name}.ids"].tolist() for name in PROMPTS]
    prompts = [[EMBEDDED_RESET if i == TINY_RESET else i for i in ids] for ids in prompts]
    prompts.append(documents(7, 1040, EMBEDDED_RESET, 3000))
    expected, reference = transformers_logits(EMBEDDED, *prompts), Reference(EMBEDDED)
    tied = 0
    for name, ids, logits in zip((*PROMPTS, "beyond the budget"), prompts, expected, strict=True):
        tied += compare(embedded, reference, ids, logits, name)
    assert_few_tied(tied, sum(map(len, prompts)), "embedded model")
    for length in (65, 258, 259, 260, 1040):
        seq = embedded.create(length)
        feed(embedded, seq, prompts[-1][:length], 256)
        assert_equal_rows(kept_logits(embedded, seq)[None], expected[-1][length - 1 : length], f"row {length - 1}")
        embedded.release(seq)


@pytest.mark.parametrize("name", PROMPTS)
def test_the_golden_greedy_texts_are_repeated(engine, golden, reference, name):
    """Up to the first row that a tie reaches; from there on the text is the reference's by the tie rule."""
    ids, golden_text = golden[f"{name}.ids"].tolist(), golden[f"{name}.greedy"].tolist()
    ours = greedy(engine, ids, len(golden_text))
    reference.ties.clear()
    by_rule, _ = reference.forward(ids + ours[:-1])
    steps = by_rule[len(ids) - 1 :]
    best = steps.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > LEAST_GAP
    assert steps.argmax(-1).tolist() == ours
    tied = tied_rows(reference.ties, len(ids + ours) - 1)[len(ids) - 1 :].nonzero()
    clean = int(tied[0]) if len(tied) else len(ours)
    print(f"{name}: {clean} of {len(ours)} tokens before a tie")
    assert ours[:clean] == golden_text[:clean]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_of_any_size_give_the_golden_logits(engine, golden, chunk):
    for name in ("short", "mid_eos", "long"):
        assert_equal_rows(all_logits(engine, golden[f"{name}.ids"].tolist(), chunk), golden[f"{name}.logits"], name)


@pytest.mark.parametrize("split", [1, 36, 63, 64, 65, 229])
def test_decode_after_any_split_of_the_prompt_gives_the_golden_logits(engine, golden, split):
    ids, expected = golden["long.ids"].tolist(), golden["long.logits"]
    seq = engine.create(len(ids))
    feed(engine, seq, ids[:split], 64)
    for row in range(split, min(split + 8, len(ids))):
        engine.step(seq, ids[row], SamplerParams(), 0)
        assert_equal_rows(kept_logits(engine, seq)[None], expected[row : row + 1], f"row {row}")
    engine.release(seq)


# a budget of 32 tokens is 8 blocks: dense up to 35 tokens. Prefixes of one prompt without ties stay without ties.
@pytest.mark.parametrize("length", [1, 3, 4, 5, 34, 35, 36, 63, 64, 65, 128, 140])
def test_lengths_around_blocks_chunks_and_the_sparse_budget_give_the_golden_logits(
    engine, golden, through_resets, length
):
    for ids, expected in ((golden["long.ids"].tolist(), golden["long.logits"]), through_resets[0]):
        assert_equal_rows(all_logits(engine, ids[:length], 1000), expected[:length], f"{length} tokens")


def test_ids_beyond_the_tokenizer_are_never_chosen(embedded):
    assert embedded.info.valid_tokens == 3057
    assert embedded.info.vocab_size == 3072
    seq = embedded.create(8)
    embedded.prefill(seq, [1, 2, 3])
    with torch.inference_mode():
        seq.slot.logits[2 % embedded.pool.steps, 3057:] = 1e6
    assert embedded.select(seq, SamplerParams()).token < 3057
    hot = SamplerParams(temperature=1.0, uniform=0.999999, top_logprobs=3)
    chosen = embedded.select(seq, hot)
    assert chosen.token < 3057
    assert all(token < 3057 for token, _ in chosen.top)
    embedded.release(seq)
