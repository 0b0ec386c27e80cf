"""Kernels of decode and verification, interpreted on the CPU, at odd sizes."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from tests.model import kernel_cases as cases

F32, BF16, FP8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn


@pytest.mark.parametrize(("rows", "out", "width", "dtype"), [(1, 37, 60, F32), (4, 130, 600, BF16), (3, 64, 96, FP8)])
def test_few_rows_times_a_matrix_is_the_product_and_rows_do_not_see_each_other(rows, out, width, dtype):
    cases.linear_few("cpu", rows, out, width, dtype)


@pytest.mark.parametrize(("rows", "width", "rank"), [(1, 60, 7), (2, 64, 16), (4, 100, 33)])
def test_hyper_connections_mix_and_inject_as_defined(rows, width, rank):
    cases.hyper("cpu", rows, 4, width, rank, BF16)


@pytest.mark.parametrize(("before", "rows", "lag"), [(0, 9, 0), (0, 11, 2), (70, 6, 1)])
def test_delta_steps_replay_accepted_rows_and_forget_rejected_ones(before, rows, lag):
    cases.delta("cpu", 2, 6, 16, 24, before, rows, lag, sigmoid=True)


def test_delta_heads_of_sixty_with_a_silu_gate():
    cases.delta("cpu", 1, 2, 60, 20, 5, 5, 1, sigmoid=False)


@pytest.mark.parametrize(("before", "rows", "dtype"), [(3, 4, F32), (30, 2, F32), (63, 4, F32), (37, 3, BF16)])
def test_attention_over_all_keys_and_over_chosen_blocks_as_defined(before, rows, dtype):
    if dtype == BF16:
        pytest.skip("the interpreter's bf16 dot is wrong")
    cases.attention_block("cpu", 4, 2, 24, 2, 12, 4, 8, before, rows, dtype)


def test_equal_scores_go_to_the_lowest_blocks():
    cases.ties("cpu", 50, 8)


@pytest.mark.parametrize(("rows", "dtype"), [(1, BF16), (3, F32), (4, FP8)])
def test_routed_and_shared_experts_as_defined(rows, dtype):
    cases.experts_block("cpu", 20, 3, 60, 20, 12, rows, dtype)


@pytest.mark.parametrize(("rows", "pool", "dtype"), [(1, 3, BF16), (4, 5, F32), (2, 12, FP8)])
def test_missed_experts_are_fetched_and_published_and_victims_are_never_in_use(rows, pool, dtype):
    cases.experts_block("cpu", 20, 3, 64, 32, 12, rows, dtype, pool=pool)


@pytest.mark.parametrize(("rows", "dtype"), [(1, F32), (4, FP8)])
def test_ngram_rows_are_hashed_gathered_and_injected_as_defined(rows, dtype):
    cases.ngram_block("cpu", rows, 4, 36, 64, dtype)


@pytest.mark.parametrize("rows", [1, 4])
def test_the_draft_heads_input_takes_the_rows_it_is_told(rows):
    cases.draft_input("cpu", rows, 4, 36, F32)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_best_token_is_the_lowest_of_equals_and_nan_is_reported(rows):
    cases.head_block("cpu", rows, 3000, 2900, 36, F32)
