"""The FP8 copy of the head that the GPU engine drafts with: what it is, that only drafts see it, what it costs them.

Interpreted on the CPU with a tiny checkpoint; the cost by its definition, with the embedded model on the CPU engine.
"""

import pytest
import torch
from carousel_kernels.fp8 import dequantize, quantize
from carousel_server.engine import EMBEDDED, gpu_start
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.weights import PIECE, quantized
from tokenizers import Tokenizer
from torch import Tensor

from tests.model.engine_kit import GREEDY, drafted, eager, open_engine
from tests.model.gpu_files import released_layout
from tests.model.oracle import make_fp8
from tests.model.test_drafts import CHATS, LEAST_ACCEPTANCE, answers

MORE_CHATS = (
    *CHATS,
    *(f"What is {a} plus {b}?" for a, b in ((1, 2), (5, 9), (23, 31), (40, 2), (7, 7), (88, 9))),
    *(f"Spell the word {word}." for word in ("house", "river", "window", "table", "flower")),
    *(f"Tell me a short story about a {hero}." for hero in ("cat", "dog", "king", "ship", "bird", "tree")),
    *(f"List three {things}." for things in ("animals", "cities", "fruits", "numbers")),
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> GpuEngine:
    folder = released_layout(tmp_path_factory.mktemp("released"))
    return gpu_start.start(
        folder, device=torch.device("cpu"), context_tokens=64, slots=2, drafts=2, expert_pool_bytes=1, prefill_rows=64
    )


@pytest.mark.parametrize("rows", [5, PIECE, 2 * PIECE + 130])
def test_a_matrix_quantised_in_pieces_is_the_one_quantised_whole(rows: int) -> None:
    weight = torch.randn(rows, 130, generator=torch.Generator().manual_seed(rows)).to(torch.bfloat16)
    for found, wanted in zip(quantized(weight), quantize(weight), strict=True):
        assert found.dtype == wanted.dtype
        assert torch.equal(found.float(), wanted.float())


def test_the_gpu_engine_drafts_with_a_copy_and_the_cpu_engine_with_the_head_itself(engine: GpuEngine) -> None:
    found = engine.forward.weights
    assert found.draft is not None
    assert found.draft.head_scale is not None
    assert found.head.dtype == torch.bfloat16
    wanted, scale = make_fp8.quantize(found.head.float())
    assert torch.equal(found.draft.head.float(), wanted.float())
    assert torch.equal(found.draft.head_scale, scale)
    own = open_engine("embedded").model.weights
    assert own.draft.head is own.head
    assert own.draft.head_scale is None


def test_drafts_are_the_best_of_the_fp8_head_and_the_text_is_that_of_the_stored_one(
    engine: GpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, seen = engine.forward, []
    real, draft = forward.logits, forward.weights.draft
    assert draft is not None
    assert draft.head_scale is not None

    def telling(streams: Tensor, *more) -> None:
        real(streams, *more)
        if more[1] is forward.buffers.draft_logits:
            seen.append((forward.buffers.x[:1].clone(), more[1].clone()))

    monkeypatch.setattr(forward, "logits", telling)
    rounded, texts, logits = dequantize(draft.head, draft.head_scale), [], []
    for width in (0, 2):
        seq = eager(engine.create(24))
        engine.prefill(seq, [3, 1, 4])
        out = [engine.select(seq, GREEDY).token]
        while len(out) < 4:
            seen.clear()
            chosen, proposed = drafted(engine, seq, out[-1], width)
            out += chosen
            assert len(seen) == len(proposed) == width
            for (x, found), token in zip(seen, proposed, strict=True):
                wanted, stored = x @ rounded.T, x @ forward.weights.head.float().T
                assert float((found - wanted).norm() / wanted.norm()) < 1e-6
                assert float((found - stored).norm() / stored.norm()) > 1e-3
                assert token == int(wanted[0, : engine.info.valid_tokens].argmax())
        logits.append(engine.state.logits[seq.slot].clone())
        texts.append(out)
        engine.release(seq)
    assert texts[0] == texts[1], "no draft of random weights is accepted, so both end at the same row"
    assert torch.equal(*logits)


def test_a_catch_up_of_the_draft_head_chooses_and_fetches_no_expert(engine: GpuEngine) -> None:
    pool = engine.pool
    mine = pool.residency[-1]
    assert mine is not None
    seq, waiting = eager(engine.create(24)), []
    engine.prefill(seq, [3, 1, 4])

    def known() -> list[Tensor]:
        return [t.clone() for t in (mine.table, mine.owner, mine.used, mine.counts, pool.tick)]

    for token in (5, 9, 2, 6):
        waiting.append(seq.waiting)
        before = known()
        engine.step(seq, token, GREEDY, 0)
        *after, tick = known()
        assert int(tick) == int(before[-1]) + 1
        for found, wanted in zip(after, before, strict=False):
            assert torch.equal(found, wanted)
    assert waiting == [1, 2, 3, 1], "the last but one found the room full"
    selected = int(mine.counts[0])
    engine.step(seq, 5, GREEDY, 2)
    assert int(mine.counts[0]) > selected
    engine.release(seq)


def test_a_trained_model_accepts_as_many_drafts_of_the_fp8_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy answers to chats on the CPU engine, whose draft head is then given the rounded head."""
    engine = open_engine("embedded", context_tokens=1024, slots=1)
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    model, valid, same = engine.model, engine.info.valid_tokens, []
    rounded = make_fp8.widen(*make_fp8.quantize(model.weights.head)).T
    exact = model.draft_logits

    def from_fp8(streams: Tensor) -> Tensor:
        stored = exact(streams)
        found = model._rows(streams.shape[0]).draft_mix.x @ rounded
        same.extend((found[:, :valid].argmax(-1) == stored[:, :valid].argmax(-1)).tolist())
        return found

    def accepted(width: int) -> tuple[list[list[int]], int, int]:
        proposed, kept = engine.stats.drafts_proposed, engine.stats.drafts_accepted
        texts, _ = answers(engine, tokenizer, width, MORE_CHATS)
        return texts, engine.stats.drafts_proposed - proposed, engine.stats.drafts_accepted - kept

    for width in LEAST_ACCEPTANCE:
        with monkeypatch.context() as patch:
            texts, of, stored = accepted(width)
            patch.setattr(model, "draft_logits", from_fp8)
            found, count, kept = accepted(width)
        print(f"width {width}: {kept} of {count} drafts accepted, {stored} of {of} with the head as stored")
        assert found == texts
        assert kept / count > stored / of - 0.02
    print(f"{sum(same)} of {len(same)} proposals are those of the head as stored")
    assert sum(same) >= 0.97 * len(same)
