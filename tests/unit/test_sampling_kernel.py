"""The sampling kernels, interpreted, against their definition."""

import functools
import os

import pytest
import torch
from carousel_kernels import sampling
from carousel_kernels.sampling import triton as kernels
from carousel_kernels.sampling.log_probabilities import MOST, Best, log_probabilities
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.model.sampling_cases import Case, adjusted, real_case

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="compiled: tests/model/test_gpu_sampling.py"
)

BELOW_1 = 1 - 2.0**-24
LOGITS = ["normal", "wide", "equal", "few values", "mostly -inf", "around 0"]


@functools.cache
def work(vocab: int, width: int | None = None, bits: int = 8) -> kernels.Work:
    """One for all cases of a size: what a selection leaves behind must not matter to the next."""
    return kernels.Work.empty(vocab, torch.device("cpu"), width=width, bits=bits)


def logits(kind: str, vocab: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(vocab, generator=draw)
    if kind == "wide":
        return x * 30
    if kind == "equal":
        return torch.full((vocab,), float(x[0]))
    if kind == "few values":
        return (2 * x).round()
    if kind == "mostly -inf":
        x[torch.rand(vocab, generator=draw) < 0.9] = -torch.inf
        x[0] = 0.5
        return x
    if kind == "around 0":
        small = torch.tensor([0.0, -0.0, 1e-40, -1e-40, 1e-30, -1e-30])
        return small[torch.randint(0, 6, (vocab,), generator=draw)]
    return x


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, kernels.Work]:
    vocab, width = draw(st.sampled_from([(1, None), (7, None), (7, 4), (65, 32), (1000, None), (1000, 512)]))
    seed, valid = draw(st.integers(0, 10**6)), draw(st.integers(max(1, vocab - 9), vocab))
    several = torch.Generator().manual_seed(seed + 1)
    mask = torch.rand(vocab, generator=several) < 0.5
    found = logits(draw(st.sampled_from(LOGITS)), vocab, seed)
    mask[int(found[:valid].argmax())] = True
    case = Case(
        logits=found,
        valid=valid,
        temperature=draw(st.sampled_from([0.0, 1e-6, 0.01, 0.7, 1.0, 2.0, 1e6])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 5, vocab, 2**31 - 1])),
        top_p=draw(st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 1 - 2.0**-53, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-9, 0.05, 0.5, 1.0])),
        uniform=draw(st.sampled_from([0.0, 0.25, 0.5, BELOW_1, 1 - 2.0**-53]) | st.floats(0, BELOW_1)),
        repetition=draw(st.sampled_from([1.0, 1.3, 0.7])),
        frequency=draw(st.sampled_from([0.0, 0.3, -2.0])),
        presence=draw(st.sampled_from([0.0, 1.1])),
        tokens=draw(st.lists(st.integers(0, vocab - 1), max_size=12)),
        bias=torch.randn(vocab, generator=several) if draw(st.booleans()) else None,
        mask=mask if draw(st.booleans()) else None,
    )
    return case, work(vocab, width)


@given(cases())
@settings(deadline=None, max_examples=80, derandomize=True, suppress_health_check=list(HealthCheck))
def test_a_selection_is_what_its_definition_says(drawn):
    case, buffers = drawn
    assert case.found(buffers) == case.wanted()
    assert torch.equal(adjusted(buffers, case.valid), case.adjusted() + 0.0)


@pytest.mark.parametrize("bits", [4, 5, 8])
@pytest.mark.parametrize("kind", ["normal", "few values"])
def test_a_pass_may_find_any_number_of_bits(bits, kind):
    case = Case(logits(kind, 3001, 5), 2999, top_k=700, top_p=0.8, min_p=0.01, uniform=0.6180339)
    assert case.found(work(3001, bits=bits)) == case.wanted()


@pytest.mark.parametrize("seed", range(3))
def test_65537_ids_are_two_tiles(seed):
    case = real_case(seed, 65537, 65530)
    assert case.found(work(65537, bits=4)) == case.wanted()


def test_the_best_of_ids_that_all_share_its_logit_is_the_lowest_and_the_draw_reaches_each():
    same = torch.zeros(100)
    assert Case(same, 100, top_k=1, uniform=BELOW_1).found(work(100, 32)) == 0
    assert Case(same, 100, top_p=0.0, uniform=BELOW_1).found(work(100, 32)) == 0
    assert Case(same, 100, top_k=40, uniform=BELOW_1).found(work(100, 32)) == 39
    assert Case(same, 100, uniform=BELOW_1).found(work(100, 32)) == 99
    assert Case(same, 100, top_p=0.5, uniform=0.25).found(work(100, 32)) == 12


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_of_one_token_gives_it_and_an_empty_mask_is_reported(temperature):
    mask = torch.zeros(70, dtype=torch.bool)
    case = Case(logits("normal", 70, 3), 66, temperature=temperature, top_k=5, top_p=0.5, mask=mask)
    assert case.found(work(70, 32)) == kernels.NONE
    mask[68] = True  # not a valid id
    assert case.found(work(70, 32)) == kernels.NONE
    mask[41] = True
    assert case.found(work(70, 32)) == 41


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_nan_is_reported_unless_it_is_masked(temperature):
    x, mask = logits("normal", 70, 3), torch.ones(70, dtype=torch.bool)
    x[50] = torch.nan
    case = Case(x, 66, temperature=temperature, top_k=5, top_p=0.5, mask=mask)
    assert case.found(work(70, 32)) == kernels.NAN
    mask[50] = False
    assert case.found(work(70, 32)) == case.wanted()
    assert Case(logits("normal", 70, 3), 66, top_p=0.5).found(work(70, 32)) >= 0


def test_an_infinite_logit_is_certain():
    x = logits("normal", 70, 3)
    x[20] = torch.inf
    assert Case(x, 66, uniform=BELOW_1).found(work(70, 32)) == Case(x, 66, uniform=BELOW_1).wanted() == 20


@pytest.mark.parametrize(
    ("vocab", "valid", "width", "rows", "top"),
    [(1, 1, None, 1, 1), (7, 5, None, 2, 5), (1000, 990, 256, 4, 20), (3001, 3000, None, 1, 0)],
)
def test_log_probabilities_are_the_definitions_in_its_order(vocab, valid, width, rows, top):
    x = torch.stack([logits("few values", vocab, row) for row in range(rows)])
    x[0, 0] = -torch.inf if vocab > 1 else 3.0
    best, chosen = Best.empty(rows, vocab, torch.device("cpu"), width), torch.arange(rows)
    log_probabilities(x, chosen, best, valid=valid, top=top)
    for row in range(rows):
        logprob, pairs = sampling.logprobs(x[row], valid, row, top)
        found = best.out[row].tolist()
        assert found[0] == pytest.approx(logprob, abs=1e-5)
        assert found[1 : 1 + top] == [token for token, _ in pairs]
        assert found[1 + MOST :][:top] == pytest.approx([value for _, value in pairs], abs=1e-5)
