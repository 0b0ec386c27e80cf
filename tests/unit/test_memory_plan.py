"""Bytes from limits: against the checkpoint's own tensors, and what happens when they do not fit."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import pytest
from carousel_server.allocations import cpu_state, expert_layers, weight_bytes
from carousel_server.limits import EngineSettings, GiB, Limits, MiB, PrefixCacheLimits, SessionLimits
from carousel_server.memory_plan import plan, rows_by_key
from carousel_server.model_shape import ModelShape
from carousel_server.presets import PRESETS

TINY = PRESETS["tiny"]
FP8 = PRESETS["qwen3.8-flash-next-fp8"]
BF16 = PRESETS["qwen3.8-flash-next-bf16"]
H200 = 139 * GiB


def tiny(limits: Limits | None = None, settings: EngineSettings | None = None, **machine):
    return plan(TINY, limits or Limits(), settings or EngineSettings(), device="cpu", **machine)


def test_the_shape_counts_every_parameter_of_the_embedded_checkpoint():
    with files("carousel_server").joinpath("embedded/model.safetensors").open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        tensors = json.loads(file.read(size))
    stored = 0
    for name, tensor in tensors.items():
        if name != "__metadata__" and tensor["dtype"] != "I64":
            count = 1
            for extent in tensor["shape"]:
                count *= extent
            stored += count
    assert TINY.dense_params + TINY.routed_params + TINY.table_params == stored


def test_the_real_model_has_its_published_sizes():
    assert BF16.ngram_rows == 320_001_536
    assert BF16.table_params == 320_001_536 * 160
    assert BF16.routed_params == 49 * 512 * 3 * 640 * 2560
    assert round((BF16.dense_params + BF16.routed_params + BF16.table_params) / 1e9, 2) == 179.55
    assert FP8.table_params * FP8.expert_element_bytes == 51_200_245_760


@pytest.mark.parametrize(
    ("field", "message"), [("vocab_size", "vocab_size"), ("layer_types", "layer_types"), ("num_experts", "num_experts")]
)
def test_a_config_without_a_size_is_refused_by_name(field, message):
    config = json.loads(files("carousel_server").joinpath("embedded/config.json").read_text())
    del config["text_config"][field]
    with pytest.raises(ValueError, match=message):
        ModelShape.from_config(config)


def test_another_model_is_refused():
    with pytest.raises(ValueError, match="llama"):
        ModelShape.from_config({"model_type": "llama"})


def test_a_small_model_plans_small():
    found = tiny()
    assert found.fits
    assert found.limits.checkpoint_bytes == 4 * found.sequence_bytes
    assert found.limits.prefix_cache.bytes == 16 * found.sequence_bytes
    assert found.limits.sessions.bytes < 16 * MiB
    assert found.host_bytes < 2 * GiB


def test_a_large_model_gets_the_figures():
    found = plan(FP8, Limits(active_requests=64, sessions=SessionLimits(count=10_000)), EngineSettings(), device="cuda")
    assert found.limits.checkpoint_bytes == 4 * GiB
    assert found.limits.prefix_cache.bytes == 8 * GiB
    assert found.limits.sessions.bytes == 256 * MiB


def test_explicit_bytes_are_taken_as_they_are():
    limits = Limits(
        checkpoint_bytes=7 * MiB, sessions=SessionLimits(bytes=5 * MiB), prefix_cache=PrefixCacheLimits(bytes=3 * MiB)
    )
    rows = rows_by_key(tiny(limits).host)
    assert (rows["suspended state"], rows["sessions"], rows["prefix cache"]) == (7 * MiB, 5 * MiB, 3 * MiB)


def test_half_the_context_halves_what_grows_and_leaves_the_rest():
    whole, half = tiny(settings=EngineSettings(context_tokens=8192)), tiny(settings=EngineSettings(context_tokens=4096))
    fixed = cpu_state(TINY, 8192, 2).fixed
    assert (half.sequence_bytes - fixed) * 2 == whole.sequence_bytes - fixed
    assert rows_by_key(half.host)["weights"] == rows_by_key(whole.host)["weights"]


def test_a_context_above_the_checkpoints_is_refused_with_both_numbers():
    found = tiny(settings=EngineSettings(context_tokens=8256))
    assert not found.fits
    assert "8256" in found.errors[0]
    assert "8192" in found.errors[0]


def test_the_default_context_is_the_smaller_of_32768_and_the_checkpoints():
    assert tiny().engine.context_tokens == 8192
    assert plan(FP8, Limits(), EngineSettings(), device="cuda").engine.context_tokens == 32_768


def test_too_little_host_memory_is_said_with_the_numbers():
    needed = tiny().host_bytes
    assert tiny(host_bytes=needed).fits
    found = tiny(host_bytes=needed - 1)
    assert not found.fits
    assert "(1 bytes too many)" in found.errors[0]
    assert found.errors[0] in found.table()


def test_a_gpu_that_holds_every_expert_streams_none():
    found = plan(FP8, Limits(), EngineSettings(), device="cuda", gpu_bytes=H200)
    rows = rows_by_key(found.host)
    assert found.fits
    assert not found.experts_streamed
    assert rows["experts"] == 4 * 13 * FP8.expert_bytes, "buffers of 64 MiB on the way to the GPU"
    assert found.engine.prefill_chunk == 1024


def test_a_smaller_gpu_streams_and_takes_longer_chunks():
    found = plan(FP8, Limits(), EngineSettings(), device="cuda", gpu_bytes=48 * GiB)
    assert found.fits
    assert found.experts_streamed
    assert found.engine.prefill_chunk == 4096
    every = expert_layers(FP8, 2) * FP8.experts
    # each of an expert's three matrices may need up to 16 bytes more to begin where the GPU can copy it from
    assert rows_by_key(found.host)["experts"] == every * (FP8.expert_bytes + 3 * 16)
    gpu = rows_by_key(found.gpu)
    assert gpu["expert streams"] == (4 * 10 + 2 * 512) * FP8.expert_bytes
    assert gpu["expert pool"] > 26.4 * GiB
    assert found.gpu_bytes <= 48 * GiB


def test_slots_give_way_to_the_least_pool_before_the_plan_gives_up():
    long = EngineSettings(context_tokens=262_144)
    slots = [
        plan(FP8, Limits(), long, device="cuda", gpu_bytes=size * GiB).engine.gpu_state_slots for size in (24, 32, 80)
    ]
    assert slots == sorted(slots)
    assert slots[0] < 4 == slots[-1]
    assert not plan(FP8, Limits(), long, device="cuda", gpu_bytes=12 * GiB).fits


def test_a_pool_below_ten_experts_a_layer_is_refused():
    found = plan(FP8, Limits(), EngineSettings(expert_pool_bytes=GiB), device="cuda", gpu_bytes=H200)
    assert "expertPoolBytes" in found.errors[0]


def test_a_pool_that_is_asked_for_is_filled_with_whole_experts_and_has_its_streams_beside_it():
    asked = EngineSettings(expert_pool_bytes=24 * GiB, gpu_state_slots=4)
    found = plan(FP8, Limits(), asked, device="cuda", gpu_bytes=H200)
    gpu = rows_by_key(found.gpu)
    one_more = 49 * FP8.expert_bytes
    assert 24 * GiB - one_more < found.engine.expert_pool_bytes <= 24 * GiB
    assert found.engine.expert_pool_bytes % one_more == 0
    assert gpu["expert streams"] > 4 * GiB
    streamed = plan(FP8, Limits(), asked, device="cuda", gpu_bytes=found.gpu_bytes)
    assert streamed.fits
    assert not plan(FP8, Limits(), asked, device="cuda", gpu_bytes=streamed.gpu_bytes - 1).fits


@pytest.mark.parametrize("size", range(24, 150, 7))
def test_whatever_the_gpu_a_plan_that_fits_leaves_no_room_for_another_expert(size):
    found = plan(FP8, Limits(), EngineSettings(), device="cuda", gpu_bytes=size * GiB)
    assert found.fits
    assert found.gpu_bytes <= size * GiB
    if found.experts_streamed:
        assert size * GiB - found.gpu_bytes < 49 * (FP8.expert_bytes + 12)


def test_without_drafts_the_draft_heads_experts_and_caches_are_not_planned():
    def rows(drafts: int) -> dict[str, int]:
        pool = EngineSettings(drafts=drafts, expert_pool_bytes=200 * GiB)
        return rows_by_key(plan(FP8, Limits(), pool, device="cuda").gpu)

    with_head, without = rows(2), rows(0)
    assert with_head["expert pool"] - without["expert pool"] > 512 * FP8.expert_bytes
    assert with_head["state slots"] > without["state slots"]
    assert with_head["dense weights"] - without["dense weights"] > 2 * FP8.draft_params


def test_drafts_on_a_gpu_have_an_fp8_copy_of_the_head_and_on_a_cpu_none():
    """By hand: [248320, 2560] in 1940 * 20 blocks."""
    copy, vectors = 248_320 * 2560 + 4 * 1940 * 20, FP8.vector_params(drafts=True) - FP8.vector_params(drafts=False)
    on, off = (plan(FP8, Limits(), EngineSettings(drafts=drafts), device="cuda") for drafts in (1, 0))
    more = rows_by_key(on.gpu)["dense weights"] - rows_by_key(off.gpu)["dense weights"]
    assert more == copy + 2 * FP8.draft_params + 2 * vectors
    headless = replace(FP8, mtp_layers=0)
    assert len({weight_bytes(headless, drafts) for drafts in (0, 1)}) == 1
    assert ["head" in next(r.note for r in p.gpu if r.key == "dense weights") for p in (on, off)] == [True, False]
    without = (rows_by_key(tiny(settings=EngineSettings(drafts=drafts)).host)["weights"] for drafts in (1, 0))
    assert set(without) == {4 * (TINY.dense_params + TINY.routed_params + TINY.table_params)}


def test_a_type_of_dense_weights_that_is_not_built_is_refused():
    fp32 = replace(FP8, dense_element_bytes=4)
    found = plan(fp32, Limits(), EngineSettings(weights="bf16"), device="cuda", gpu_bytes=H200)
    assert "engine.weights is bf16: only the checkpoint's fp32 and fp8 are built" in found.errors[0]
    assert plan(FP8, Limits(), EngineSettings(weights="bf16"), device="cuda", gpu_bytes=H200).fits


def test_fp8_projections_halve_their_bytes_and_leave_them_to_the_pool():
    """By hand: 36 DeltaNet layers of [16480, 2560] and [2560, 6144], 12 of attention and the draft head's with
    [13952, 2560] and [2560, 6144]; 129 * 20 + 20 * 48 and 109 * 20 + 20 * 48 scales."""
    stored, fp8 = (
        plan(FP8, Limits(), EngineSettings(weights=kind), device="cuda", gpu_bytes=48 * GiB) for kind in (None, "fp8")
    )
    assert stored.fits
    assert fp8.fits
    saved = 36 * (2560 * (16480 + 6144) - 4 * 3540) + 13 * (2560 * (13952 + 6144) - 4 * 3140)
    assert rows_by_key(stored.gpu)["dense weights"] - rows_by_key(fp8.gpu)["dense weights"] == saved
    assert (
        rows_by_key(fp8.gpu)["expert pool"] - rows_by_key(stored.gpu)["expert pool"] > saved - 2 * 49 * FP8.expert_bytes
    )
    notes = [next(r.note for r in p.gpu if r.key == "dense weights") for p in (stored, fp8)]
    assert ["projections" in note for note in notes] == [False, True]
    assert stored.digest != fp8.digest


def test_fp8_projections_are_refused_on_the_cpu():
    assert "engine.weights is fp8: on the CPU" in tiny(settings=EngineSettings(weights="fp8")).errors[0]


def test_a_small_ngram_table_is_on_the_gpu_and_a_large_one_in_host_memory():
    small, large = (plan(shape, Limits(), EngineSettings(), device="cuda") for shape in (TINY, FP8))
    assert rows_by_key(small.gpu)["n-gram table"] == TINY.table_params * 2
    assert rows_by_key(small.host)["n-gram table"] == 0
    assert rows_by_key(large.gpu)["n-gram table"] == 0
    assert rows_by_key(large.host)["n-gram table"] == FP8.table_params


def test_the_digest_tells_plans_apart():
    digests = {tiny().digest, tiny(Limits(active_requests=5)).digest, tiny(settings=EngineSettings(drafts=0)).digest}
    assert len(digests) == 3
    assert tiny().digest == tiny().digest


def test_totals_are_the_sums_of_the_rows():
    found = plan(BF16, Limits(), EngineSettings(), device="cuda", gpu_bytes=H200)
    assert found.host_bytes == sum(row.bytes for row in found.host)
    assert found.gpu_bytes == sum(row.bytes for row in found.gpu)
    assert found.to_dict()["hostBytes"] == found.host_bytes


def test_a_slot_costs_the_same_whatever_their_number_and_more_with_drafts():
    def slots(drafts: int, number: int) -> int:
        found = tiny(settings=EngineSettings(drafts=drafts, gpu_state_slots=number))
        return rows_by_key(found.host)["state slots"]

    assert slots(2, 3) == 3 * slots(2, 1)
    assert slots(0, 1) < slots(1, 1) < slots(3, 1)
    without_head = plan(replace(TINY, mtp_layers=0), Limits(), EngineSettings(drafts=2), device="cpu")
    assert without_head.fits


def test_the_plan_needs_no_torch():
    code = "import sys, carousel_server.memory_plan, carousel_server.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
