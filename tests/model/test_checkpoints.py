"""Checkpoint layouts that must load, with exact values, and faulty ones that must say what is wrong with them."""

import gc
import json
import shutil
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from carousel_kernels import fp8, ngram
from carousel_server.engine import load
from carousel_server.engine.checkpoint import Checkpoint
from carousel_server.engine.config import CheckpointError
from carousel_server.engine.layout import expected
from carousel_server.engine.weights import Packer
from safetensors.torch import load_file, save_file

from tests.model.engine_kit import all_logits, open_engine
from tests.model.oracle.make_fp8 import make_fp8, quantize, widen
from tests.model.oracle.make_tiny import make_tiny

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Four layers: enough for every kind of tensor."""
    return make_tiny(tmp_path_factory.mktemp("small"), layers=4)


@pytest.fixture
def copy(small, tmp_path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "model"))


def edit(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")


def edit_config(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    for name, value in fields.items():
        if value is None:
            config["text_config"].pop(name)
        else:
            config["text_config"][name] = value
    (folder / "config.json").write_text(json.dumps(config))


def logits(folder):
    return all_logits(open_engine(folder, slots=1), list(range(40, 100)), 1000)


@pytest.mark.parametrize("name", ["full_attention", "qwen_sparse_attention", "indexed_attention"])
def test_all_three_spellings_of_the_attention_layer_are_the_same_model(small, copy, name):
    edit_config(copy, layer_types=["linear_attention"] * 3 + [name])
    assert torch.equal(logits(copy), logits(small))


def test_an_index_with_many_shards_is_the_same_model(small, copy):
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    where = {}
    for i, name in enumerate(sorted(tensors)):
        where[name] = f"model-{i % 5 + 1:05d}-of-00005.safetensors"
    for file in set(where.values()):
        save_file({n: tensors[n].contiguous() for n in where if where[n] == file}, copy / file)
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert torch.equal(logits(copy), logits(small))


def test_bf16_weights_are_widened_exactly(small, tmp_path):
    half = make_tiny(tmp_path / "bf16", layers=4, dtype="bfloat16")
    wide = Path(shutil.copytree(half, tmp_path / "wide"))
    edit(wide, lambda t: t.update({k: v.float() for k, v in t.items() if v.is_floating_point()}))
    assert torch.equal(logits(half), logits(wide))


def test_visual_tensors_are_skipped_and_the_draft_head_is_optional(small, copy):
    def change(tensors):
        tensors["model.visual.patch_embed.weight"] = torch.zeros(3, 3)
        tensors["model.language_model.hyper_connection_mixer.block_inject_weight.weight"] = torch.zeros(4, 256)
        for name in [n for n in tensors if n.startswith("mtp.")]:
            del tensors[name]

    edit(copy, change)
    assert torch.equal(logits(copy), logits(small))
    assert open_engine(copy).info.max_drafts == 0


def test_the_fp8_layout_is_widened_exactly(small, tmp_path):
    narrow, wide = make_fp8(small, tmp_path / "fp8", tmp_path / "wide")
    checkpoint = Checkpoint(narrow)
    assert checkpoint.layout.fp8_experts
    assert checkpoint.layout.fp8_ngram
    packed = Packer(checkpoint, CPU).pack()
    lazy = Packer(checkpoint, CPU, expand_bytes=0).pack()
    stored = load_file(narrow / "model.safetensors")
    for layer in (0, 3):
        for weights in (packed, lazy):
            for e in (0, 7):
                p = f"model.language_model.layers.{layer}.mlp.experts.{e}"
                parts = {
                    n: widen(stored[f"{p}.{n}_proj.weight"], stored[f"{p}.{n}_proj.weight_scale_inv"])
                    for n in ("gate", "up", "down")
                }
                assert torch.equal(weights.layers[layer].experts.gate_up[e], torch.cat([parts["gate"], parts["up"]]))
                assert torch.equal(weights.layers[layer].experts.down[e], parts["down"])
    table = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding"
    values = (
        torch.cat([stored[f"{table}.shard_{j}.weight"].float() for j in range(4)]) * stored[f"{table}.weight_scale"]
    )
    found = packed.layers[1].ngram
    assert torch.equal(ngram.gather(found.shards, torch.arange(len(values))[:, None], found.table_scale), values)
    assert torch.equal(logits(narrow), logits(wide))
    error = (logits(narrow) - logits(small)).pow(2).mean().sqrt() / logits(small).std()
    print(f"FP8 experts and table: RMS error of the logits {error:.3f} of their standard deviation")
    assert error < 0.05


def test_a_scale_covers_a_block_of_128_rows_and_columns():
    """The tiny experts are smaller than one block."""
    weight, scale = quantize(torch.randn(300, 200, generator=torch.Generator().manual_seed(1)))
    assert scale.shape == (3, 2)
    assert torch.equal(fp8.dequantize(weight, scale), widen(weight, scale))


def test_experts_too_large_to_widen_stay_in_the_mapped_file_and_give_the_same_logits(small, monkeypatch):
    expected = logits(small)
    lazy = partial(Packer, expand_bytes=0)
    checkpoint = Checkpoint(small)
    mapped = checkpoint.tensor("model.language_model.layers.0.mlp.experts.gate_up_proj")
    assert lazy(checkpoint, CPU).pack().layers[0].experts.gate_up[0].data_ptr() == mapped.data_ptr()
    monkeypatch.setattr("carousel_server.engine.start.Packer", lazy)
    assert torch.equal(logits(small), expected)


MEASURE = """
import re, sys
def anonymous():
    found = re.findall(r"Rss(?:Anon|Shmem):\\s+(\\d+)", open("/proc/self/status").read())
    return sum(map(int, found)) // 1024  # private, and of maps without a file
import torch
from carousel_server.engine import load
import carousel_server.engine.start
before = anonymous()
engine = load(sys.argv[1], context_tokens=64, slots=1, drafts=0, threads=1)
engine.prefill(engine.create(8), [1, 2, 3])
print(anonymous() - before)
"""


def test_loading_a_checkpoint_of_4_gib_allocates_no_second_copy(small, tmp_path):
    """A sparse file of zeros: its size is real to the loader and costs no disk."""
    folder = tmp_path / "big"
    folder.mkdir()
    shutil.copy(small / "config.json", folder)
    edit_config(folder, num_experts=512, hidden_size=512, moe_intermediate_size=704, ple_embed_dim=512)
    from carousel_server.engine.config import read_config
    from carousel_server.engine.layout import Layout

    config = read_config(folder)
    header, at = {}, 0
    for name, one in expected(config, Layout(fp8_experts=False, fp8_ngram=False, mtp=False)).items():
        kind, width = ("I64", 8) if one.dtypes == ("I64",) else ("BF16", 2)
        size = width * torch.Size(one.shape).numel()
        header[name] = {"dtype": kind, "shape": list(one.shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    stored = load_file(small / "model.safetensors")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + at)
        for name in header:
            if header[name]["dtype"] == "I64":
                file.seek(8 + len(raw) + header[name]["data_offsets"][0])
                file.write(stored[name].numpy().tobytes())
    assert at >= 4 * 2**30
    done = subprocess.run([sys.executable, "-c", MEASURE, str(folder)], capture_output=True, text=True, check=True)
    grown = int(done.stdout.split()[-1])
    print(f"{at / 2**30:.2f} GiB mapped, {grown} MiB of anonymous memory")
    assert grown < 64


def drop(name):
    return lambda folder: edit(folder, lambda t: t.pop(name))


def reshape(name, *shape):
    return lambda folder: edit(folder, lambda t: t.update({name: torch.zeros(shape)}))


def cut(folder, keep):
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(keep if keep > 0 else path.stat().st_size + keep)


def rewrite_header(folder, change):
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    change(header)
    new = json.dumps(header).encode()
    new += b" " * (-len(new) % 8)
    path.write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + size :])


HEAD = "lm_head.weight"
GATE = "model.language_model.layers.2.mlp.gate.weight"
MULTIPLIERS = "model.language_model.layers.1.ple.ple_embedding.layer_multipliers"
SHARD = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_2.weight"

FAULTS = {
    "no folder": (lambda f: shutil.rmtree(f), r"model: no such folder; give the folder of a model or `embedded`"),
    "no config": (
        lambda f: (f / "config.json").unlink(),
        r"config\.json: not found; a model folder holds config\.json",
    ),
    "config is not JSON": (lambda f: (f / "config.json").write_text("{"), r"config\.json: not readable as JSON"),
    "another model": (
        lambda f: edit_config(f, model_type="llama"),
        r"model_type is 'llama'; this engine runs qwen4_exp",
    ),
    "field missing": (lambda f: edit_config(f, hc_lowrank=None), r"hc_lowrank: expected an integer .*, found nothing"),
    "gate type left to a default": (
        lambda f: edit_config(f, output_gate_type=None),
        r"output_gate_type: expected 'sigmoid' or 'silu', found nothing",
    ),
    "unknown layer type": (
        lambda f: edit_config(f, layer_types=["linear_attention"] * 3 + ["sliding_attention"]),
        r"layer_types: expected linear_attention or one of .*, found .*sliding_attention",
    ),
    "unsupported switch": (
        lambda f: edit_config(f, norm_topk_prob=False),
        r"norm_topk_prob: expected True \(nothing else is supported\), found False",
    ),
    "n-gram on an attention layer": (lambda f: edit_config(f, ple_layer_ids=[4]), r"ple_layer_ids: expected 1-indexed"),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        r"no \*\.safetensors file; is the download complete\?",
    ),
    "missing tensor": (drop(GATE), r"layers\.2\.mlp\.gate\.weight: missing \(1 of \d+ tensors; model\.safetensors\)"),
    "missing shard of the table": (drop(SHARD), r"shard_2\.weight: missing"),
    "half a draft head": (drop("mtp.fc_hidden.weight"), r"mtp\.fc_hidden\.weight: missing"),
    "surplus tensor": (
        lambda f: edit(f, lambda t: t.update({"model.language_model.norm.weight": torch.zeros(64)})),
        r"model\.safetensors: model\.language_model\.norm\.weight: not part of this model",
    ),
    "wrong shape": (
        reshape(HEAD, 500, 64),
        r"model\.safetensors: lm_head\.weight: expected shape \[512, 64\] from config\.json, found \[500, 64\]",
    ),
    "wrong type": (
        lambda f: edit(f, lambda t: t.update({HEAD: t[HEAD].to(torch.float16)})),
        r"model\.safetensors: lm_head\.weight: expected type F32 or BF16, found F16",
    ),
    "unknown type": (
        lambda f: edit(f, lambda t: t.update({HEAD: t[HEAD].to(torch.int32)})),
        r"model\.safetensors: lm_head\.weight: type I32 is not supported",
    ),
    "truncated data": (lambda f: cut(f, -100), r"bytes \d+ to \d+ of a file of \d+ bytes: the file is truncated"),
    "truncated header": (
        lambda f: cut(f, 1000),
        r"header of \d+ bytes in a file of 1000: truncated, or not safetensors",
    ),
    "an empty file": (lambda f: cut(f, 4), r"4 bytes, too short to be a safetensors file"),
    "sizes that do not add up": (
        lambda f: rewrite_header(f, lambda h: h[HEAD].update(shape=[512, 63])),
        r"lm_head\.weight: F32 \[512, 63\] takes 129024 bytes, the header gives 131072",
    ),
    "hash constants of another seed": (
        lambda f: edit_config(f, seed=99),
        r"layer_multipliers: expected \[.*\] from config\.json's seed and base, found",
    ),
    "an index that names a lost file": (
        lambda f: (f / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {HEAD: "lost.safetensors"}})
        ),
        r"lost\.safetensors: named by model\.safetensors\.index\.json but missing",
    ),
    "an index that is wrong about a tensor": (
        lambda f: (f / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"nothing.weight": "model.safetensors"}})
        ),
        r"nothing\.weight: expected in model\.safetensors, found nowhere",
    ),
    "an index that leaves the folder": (
        lambda f: (f / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {HEAD: "../x.safetensors"}})
        ),
        r"'\.\./x\.safetensors' is not a file name beside the index",
    ),
    "a tensor in two files": (
        lambda f: shutil.copy(f / "model.safetensors", f / "more.safetensors"),
        r"more\.safetensors: .*: also in model\.safetensors; one must go",
    ),
    "a tokenizer of another model": (
        lambda f: (f / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 600}}})),
        r"tokenizer\.json: 601 ids, but vocab_size in config\.json is 512",
    ),
    "an end token that does not exist": (
        lambda f: (f / "generation_config.json").write_text(json.dumps({"eos_token_id": [512]})),
        r"eos_token_id: expected ids below 512, found \[512\]",
    ),
}


def maps_of(folder):
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_checkpoint_says_what_is_wrong_and_nothing_stays_loaded(copy, fault):
    change, message = FAULTS[fault]
    change(copy)
    with pytest.raises(CheckpointError, match=message):
        load(str(copy), context_tokens=64, slots=1, drafts=2, threads=1)
    gc.collect()
    assert not maps_of(copy)


def test_a_context_beyond_the_checkpoint_is_refused(small):
    with pytest.raises(CheckpointError, match=r"context of 5000 tokens: .* goes to 4096"):
        load(str(small), context_tokens=5000, slots=1, drafts=0, threads=1)
