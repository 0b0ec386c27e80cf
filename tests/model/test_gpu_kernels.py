"""Kernels against their definitions on a GPU, at real and at odd sizes."""

import pytest
import torch

pytestmark = pytest.mark.gpu

if torch.cuda.is_available():
    from tests.model import expert_cases
    from tests.model import kernel_cases as cases

F32, BF16, FP8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def plain_fp32():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("out", "width", "dtype"),
    [(37, 60, F32), (16480, 2560, BF16), (2560, 6144, BF16), (1793, 2560, BF16), (64, 96, FP8)],
)
def test_few_rows_times_a_matrix_is_the_product_and_rows_do_not_see_each_other(rows, out, width, dtype):
    cases.linear_few("cuda", rows, out, width, dtype)


@pytest.mark.parametrize("dtype", [BF16, FP8])
@pytest.mark.parametrize(("rows", "out", "width", "exact"), [(70, 90, 100, True), (1000, 16480, 2560, False)])
def test_many_rows_times_a_matrix_is_the_product_whatever_the_rows_place(rows, out, width, exact, dtype):
    cases.linear_many("cuda", rows, out, width, dtype, exact)


@pytest.mark.parametrize(("rows", "width", "rank"), [(1, 60, 7), (4, 2560, 320), (3, 2560, 320), (2, 100, 33)])
def test_hyper_connections_mix_and_inject_as_defined(rows, width, rank):
    cases.hyper("cuda", rows, 4, width, rank, BF16)


@pytest.mark.parametrize(
    ("kh", "vh", "dk", "dv", "before", "rows", "lag", "sigmoid"),
    [
        (16, 48, 128, 128, 0, 11, 2, True),
        (16, 48, 128, 128, 130, 9, 1, False),
        (2, 6, 24, 60, 70, 6, 3, True),
    ],
)
def test_delta_chunks_and_steps_as_defined(kh, vh, dk, dv, before, rows, lag, sigmoid):
    cases.delta("cuda", kh, vh, dk, dv, before, rows, lag, sigmoid)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("before", "top"), [(2049, 512), (3001, 512), (127, 512), (700, 64)])
def test_attention_at_the_switch_from_all_keys_to_chosen_blocks(before, top, dtype):
    cases.attention_block("cuda", 24, 2, 256, 4, 128, 32, top, before, 4, dtype)


def test_equal_scores_go_to_the_lowest_blocks():
    cases.ties("cuda", 9000, 512)


@pytest.mark.parametrize(
    ("rows", "dtype", "pool"), [(1, BF16, None), (4, FP8, None), (3, FP8, 64), (4, FP8, 10), (4, BF16, 10)]
)
def test_512_experts_with_the_winner_last_resident_and_fetched(rows, dtype, pool):
    expert_cases.experts_block("cuda", 512, 10, 2560, 640, 640, rows, dtype, pool=pool)


@pytest.mark.parametrize(("rows", "dtype", "exact"), [(50, F32, True), (300, BF16, False), (1000, FP8, False)])
def test_experts_of_many_rows_as_defined(rows, dtype, exact):
    expert_cases.experts_many("cuda", 512, 10, 2560, 640, rows, dtype, exact)


@pytest.mark.parametrize(("rows", "dtype"), [(1, F32), (4, FP8), (3, BF16)])
def test_ngram_rows_are_hashed_gathered_and_injected_as_defined(rows, dtype):
    cases.ngram_block("cuda", rows, 4, 2560, 2560, dtype)


@pytest.mark.parametrize("rows", [1, 4])
def test_the_draft_heads_input_takes_the_rows_it_is_told(rows):
    cases.draft_input("cuda", rows, 4, 2560, BF16)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_best_token_is_the_lowest_of_equals_and_nan_is_reported(rows):
    cases.head_block("cuda", rows, 248320, 248077, 2560, BF16)


def test_a_pool_of_10_serves_4_rows_of_40_distinct_experts():
    expert_cases.pool_of_ten("cuda", 512, 2560, 640)


def test_a_steps_rows_and_its_count_of_kept_ones_are_the_definitions():
    cases.step_ends("cuda")
