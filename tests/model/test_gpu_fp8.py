"""FP8 projections made at load: against the CPU engine with the same projections rounded, and with none.

Interpreted on the CPU with a tiny checkpoint; on a GPU with the embedded model, whose weights are trained.
"""

from pathlib import Path

import pytest
import torch
from carousel_kernels.fp8 import dequantize, quantize
from carousel_server.engine import EMBEDDED, gpu_start, start
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.weights import Attention, Delta

from tests.model.engine_kit import GREEDY, eager, random_ids
from tests.model.gpu_files import Rounded, compare, released_layout
from tests.model.oracle import make_fp8

FP8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released_layout(tmp_path_factory.mktemp("released"))


def started(folder: Path, *, device: str = "cpu", context_tokens: int = 64, **more) -> GpuEngine:
    return gpu_start.start(
        folder, device=torch.device(device), context_tokens=context_tokens, slots=1, prefill_rows=64, **more
    )


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (300, 200), (5, 257)])
def test_a_block_is_scaled_to_its_largest_value_as_the_oracle_says(rows: int, columns: int) -> None:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
    values, scale = quantize(weight.mT.contiguous().mT)
    wanted, scales = make_fp8.quantize(weight)
    assert torch.equal(scale, scales)
    assert torch.equal(values.float(), wanted.float())
    assert float(values.float().abs().max()) == 448
    assert float((dequantize(values, scale) - weight).norm() / weight.norm()) < 0.04


def test_a_block_of_zeros_has_the_scale_1_and_stays_zero() -> None:
    weight = torch.zeros(200, 300)
    weight[150:, 10] = 3.0
    values, scale = quantize(weight)
    assert torch.equal(scale, torch.tensor([[1.0, 1.0, 1.0], [3.0 / 448, 1.0, 1.0]]))
    torch.testing.assert_close(dequantize(values, scale), weight)


def test_what_is_not_a_number_is_not_hidden_by_quantising() -> None:
    weight = torch.ones(2, 2)
    weight[1, 0] = torch.nan
    assert bool(dequantize(*quantize(weight)).isnan().any())


def test_projections_are_fp8_and_everything_else_is_as_stored(folder: Path) -> None:
    found = started(folder, drafts=2, dense_fp8=True).forward.weights
    assert found.draft is not None
    for layer in (*found.layers, found.draft.layer):
        block, experts = layer.block, layer.experts
        assert isinstance(block, Delta | Attention)
        for matrix, scale in ((block.project, block.project_scale), (block.out, block.out_scale)):
            assert matrix.dtype == FP8
            assert scale is not None
            assert scale.shape == tuple(-(-size // 128) for size in matrix.shape)
        kept = (layer.block_mixer.down, layer.experts_mixer.up, experts.project, experts.shared_down)
        assert {matrix.dtype for matrix in (found.head, found.embedding, *kept)} == {torch.bfloat16}


def test_fp8_projections_have_the_logits_of_the_cpu_engine_with_the_same_rounding(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = started(folder, drafts=0, dense_fp8=True)
    plain = compare(folder, found, rows=9, steps=0)
    monkeypatch.setattr(start, "Packer", Rounded)
    assert compare(folder, found, rows=9, steps=2) < 1e-4
    assert plain > 1e-3, "rounding shows, so it is the rounded weights that are compared"


@pytest.mark.gpu
def test_fp8_projections_on_the_gpu_have_the_logits_of_the_cpu_engine_with_the_same_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = started(EMBEDDED, device="cuda", context_tokens=512, drafts=0, dense_fp8=True)
    monkeypatch.setattr(start, "Packer", Rounded)
    assert compare(EMBEDDED, found, rows=150, steps=60) < 1e-3


@pytest.mark.gpu
def test_drafts_over_fp8_projections_change_nothing_but_the_number_of_steps() -> None:
    found = started(EMBEDDED, device="cuda", context_tokens=512, drafts=3, dense_fp8=True)
    before, texts = found.stats.drafts_accepted, []
    for drafts in (0, 3):
        seq = eager(found.create(300))
        found.prefill(seq, random_ids(3, 90))
        out = [found.select(seq, GREEDY).token]
        while len(out) < 80:
            out += [s.token for s in found.step(seq, out[-1], GREEDY, drafts)]
        found.release(seq)
        texts.append(out[:80])
    assert texts[0] == texts[1]
    assert found.stats.drafts_accepted > before
