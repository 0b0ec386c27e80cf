"""Draws and counts of one request: Philox by its published vectors, one draw a token, counts from the whole prompt."""

import hypothesis.strategies as st
import pytest
from carousel_server.philox import philox, uniform
from carousel_server.sampling import Sampler
from carousel_server.turn import RngState, Settings
from hypothesis import given

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, words):
    assert philox(counter, key) == words


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_uniform_is_below_one_even_in_single_precision(seed, draw):
    import torch

    value = uniform(seed, draw)
    assert 0.0 <= value < 1.0
    assert float(torch.tensor(value, dtype=torch.float32)) == value


def test_uniforms_are_spread_evenly():
    values = [uniform(seed, draw) for seed in range(20) for draw in range(500)]
    assert abs(sum(values) / len(values) - 0.5) < 0.01
    assert len(set(values)) > 9_900


def test_a_draw_is_spent_by_a_token_and_not_by_looking():
    sampler = Sampler(Settings(temperature=1.0), [1, 2], RngState(9, 4), 8)
    assert sampler.params().uniform == sampler.params().uniform == uniform(9, 4)
    sampler.accept(3)
    assert sampler.rng == RngState(9, 5)
    assert sampler.params().uniform == uniform(9, 5)


def test_greedy_spends_no_draw():
    sampler = Sampler(Settings(), [1, 2], RngState(9, 4), 8)
    sampler.params()
    sampler.accept(3)
    assert sampler.rng == RngState(9, 4)


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        (Settings(), True),
        (Settings(top_p=0.5, top_k=3, seed=1), True),
        (Settings(temperature=0.1), False),
        (Settings(presence_penalty=0.1), False),
        (Settings(frequency_penalty=-0.1), False),
        (Settings(repetition_penalty=1.1), False),
        (Settings(logit_bias={1: 2.0}), False),
    ],
)
def test_only_plain_greedy_selection_may_verify_drafts(settings, plain):
    assert Sampler(settings, [0], RngState(1), 8).plain_greedy is plain


def test_counts_come_from_the_whole_prompt_and_then_from_the_output():
    sampler = Sampler(Settings(frequency_penalty=1.0), [1, 1, 5], RngState(1), 8)
    assert sampler.params().counts.tolist() == [0, 2, 0, 0, 0, 1, 0, 0]
    sampler.accept(5)
    assert sampler.params().counts.tolist() == [0, 2, 0, 0, 0, 2, 0, 0]


def test_a_bias_stands_at_its_tokens():
    sampler = Sampler(Settings(logit_bias={2: -100.0, 7: 3.5}), [], RngState(1), 8)
    assert sampler.params().bias.tolist() == [0, 0, -100.0, 0, 0, 0, 0, 3.5]
