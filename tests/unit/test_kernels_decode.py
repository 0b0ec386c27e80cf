"""Kernels of decode and verification, interpreted on the CPU, at odd sizes."""

import pytest
import torch

from tests.model import expert_cases
from tests.model import kernel_cases as cases

F32, BF16, FP8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn


@pytest.mark.parametrize(("rows", "out", "width", "dtype"), [(1, 37, 60, F32), (4, 130, 600, BF16), (3, 300, 200, FP8)])
def test_few_rows_times_a_matrix_is_the_product_and_rows_do_not_see_each_other(rows, out, width, dtype):
    cases.linear_few("cpu", rows, out, width, dtype)


@pytest.mark.parametrize(("out", "width", "dtype"), [(90, 100, F32), (300, 200, FP8)])
def test_many_rows_times_a_matrix_is_the_product_whatever_the_rows_place(out, width, dtype):
    cases.linear_many("cpu", 70, out, width, dtype, True)


@pytest.mark.parametrize(("rows", "width", "rank"), [(1, 60, 7), (4, 100, 33)])
def test_hyper_connections_mix_and_inject_as_defined(rows, width, rank):
    cases.hyper("cpu", rows, 4, width, rank, BF16)


@pytest.mark.parametrize(("before", "rows", "lag"), [(0, 5, 1), (6, 3, 1)])
def test_delta_steps_replay_accepted_rows_and_forget_rejected_ones(before, rows, lag):
    cases.delta("cpu", 1, 2, 12, 8, before, rows, lag, sigmoid=True)


@pytest.mark.parametrize(("before", "rows", "top"), [(3, 3, 4), (19, 2, 4)])
def test_attention_over_all_keys_and_over_chosen_blocks_as_defined(before, rows, top):
    cases.attention_block("cpu", 2, 1, 24, 2, 12, 4, top, before, rows, F32)


def test_equal_scores_go_to_the_lowest_blocks():
    cases.ties("cpu", 50, 8)


@pytest.mark.parametrize(("rows", "dtype"), [(1, BF16), (2, FP8)])
def test_routed_and_shared_experts_as_defined(rows, dtype):
    expert_cases.experts_block("cpu", 20, 3, 60, 20, 12, rows, dtype)


@pytest.mark.parametrize(("rows", "pool", "dtype"), [(2, 3, BF16), (3, 12, FP8)])
def test_missed_experts_are_fetched_and_published_and_victims_are_never_in_use(rows, pool, dtype):
    expert_cases.experts_block("cpu", 20, 3, 64, 32, 12, rows, dtype, pool=pool)


def test_a_pool_of_10_serves_4_rows_of_40_distinct_experts():
    expert_cases.pool_of_ten("cpu", 48, 64, 16)


def test_experts_of_many_rows_as_defined():
    expert_cases.experts_many("cpu", 12, 3, 60, 20, 40, F32, True)


@pytest.mark.parametrize("dtype", [F32, FP8])
def test_ngram_rows_are_hashed_gathered_and_injected_as_defined(dtype):
    cases.ngram_block("cpu", 2, 4, 36, 32, dtype)


@pytest.mark.parametrize("rows", [1, 4])
def test_the_draft_heads_input_takes_the_rows_it_is_told(rows):
    cases.draft_input("cpu", rows, 4, 36, F32)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_best_token_is_the_lowest_of_equals_and_nan_is_reported(rows):
    cases.head_block("cpu", rows, 3000, 2900, 36, F32)


def test_a_steps_rows_and_its_count_of_kept_ones_are_the_definitions():
    cases.step_ends("cpu")
