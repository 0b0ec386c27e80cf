"""Bytes from limits: against the checkpoint's own tensors, and what happens when they do not fit."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import pytest
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
    fixed = TINY.fixed_state_bytes(4)
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
    assert rows["experts"] == 0
    assert found.engine.prefill_chunk == 1024


def test_a_smaller_gpu_streams_and_takes_longer_chunks():
    found = plan(FP8, Limits(), EngineSettings(), device="cuda", gpu_bytes=48 * GiB)
    assert found.fits
    assert found.experts_streamed
    assert found.engine.prefill_chunk == 4096
    assert rows_by_key(found.host)["experts"] == FP8.moe_layers * FP8.experts * FP8.expert_bytes
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


def test_the_digest_tells_plans_apart():
    digests = {tiny().digest, tiny(Limits(active_requests=5)).digest, tiny(settings=EngineSettings(drafts=0)).digest}
    assert len(digests) == 3
    assert tiny().digest == tiny().digest


def test_totals_are_the_sums_of_the_rows():
    found = plan(BF16, Limits(), EngineSettings(), device="cuda", gpu_bytes=H200)
    assert found.host_bytes == sum(row.bytes for row in found.host)
    assert found.gpu_bytes == sum(row.bytes for row in found.gpu)
    assert found.to_dict()["hostBytes"] == found.host_bytes


def test_more_drafts_cost_slots_a_state_each():
    def slots(drafts: int) -> int:
        found = tiny(settings=EngineSettings(drafts=drafts, gpu_state_slots=2))
        return rows_by_key(found.host)["state slots"]

    assert slots(2) - slots(0) == 2 * 2 * TINY.fixed_state_bytes(4)
    without_head = plan(replace(TINY, mtp_layers=0), Limits(), EngineSettings(drafts=2), device="cpu")
    assert without_head.fits


def test_the_plan_needs_no_torch():
    code = "import sys, carousel_server.memory_plan, carousel_server.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
