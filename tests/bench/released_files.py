"""Writes a checkpoint in the FP8 release layout with random weights, quickly: one file a layer, and an index.

The experts of one layer are drawn; layer i's expert e has the values of the drawn expert (e + 37 i) mod E, so that no
two layers have the same experts at the same ids. Tokenizer and chat template are the embedded model's.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import torch
from carousel_server.engine import EMBEDDED
from carousel_server.engine.config import ModelConfig, parse_config
from carousel_server.engine.layout import Expected, Layout, expected, hash_multipliers, hash_sizes
from torch import Tensor

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
SPREAD = 32.0  # FP8 values are drawn with this deviation; scales bring them back
STEP = 37  # experts that a layer's are shifted by
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3", torch.int64: "I64"}
GAINS = {
    "lm_head": 3.0,
    "input_mix_weight_down": 3.0,
    "input_mix_weight_up": 3.0,
    "block_inject_weight": 4.0,
    "mlp.gate": 2.0,
    "in_proj_qkv": 2.0,
    "q_proj": 2.0,
    "k_proj": 2.0,
    "index_qk_proj": 2.0,
    "key_proj": 2.0,
}


def write(folder: Path, text: dict[str, Any], device: torch.device, *, drafts: bool = True, seed: int = 0) -> int:
    """Write the checkpoint of a text config, with or without the draft head; returns the bytes of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    text = {**text, "dtype": "bfloat16"} | ({} if drafts else {"mtp_num_hidden_layers": 0})
    config = {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": text,
        "quantization_config": {"quant_method": "fp8"},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for name in TOKENIZER:
        shutil.copy(EMBEDDED / name, folder)
    c = parse_config(text, str(folder))
    tensors = expected(c, Layout(fp8_experts=True, fp8_ngram=True, mtp=drafts))
    draw = Draw(c, device, seed)
    files: dict[str, list[str]] = {}
    for name in tensors:
        files.setdefault(file_of(name), []).append(name)
    with ThreadPoolExecutor(8) as writers:
        total = sum(write_file(folder / file, names, tensors, draw, writers) for file, names in files.items())
    index = {"metadata": {"total_size": total}, "weight_map": {n: file for file, names in files.items() for n in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def roomy(layers: int) -> str:
    """A folder whose file system has room for a checkpoint of this many layers: in memory if it can be."""
    needed = (layers + 1) * 2.6e9 + 6e9
    for folder in ("/dev/shm", tempfile.gettempdir()):
        if Path(folder).is_dir() and shutil.disk_usage(folder).free > needed:
            return folder
    raise SystemExit(f"{needed / 1e9:.0f} GB are free neither in /dev/shm nor in {tempfile.gettempdir()}: fewer layers")


def file_of(name: str) -> str:
    """The file that a tensor goes to: its layer's, the draft head's or the rest's."""
    if name.startswith("mtp."):
        return "mtp.safetensors"
    _, _, tail = name.partition(".layers.")
    return f"layer-{int(tail.partition('.')[0]):02}.safetensors" if tail else "rest.safetensors"


class Draw:
    """The value of any tensor by its name."""

    def __init__(self, config: ModelConfig, device: torch.device, seed: int) -> None:
        self.config, self.device = config, device
        self.generator = torch.Generator(device).manual_seed(seed)
        c = config
        part = c.expert_width * c.hidden
        stored = torch.empty(c.experts, 3 * part, dtype=torch.uint8)
        for e in range(0, c.experts, 32):
            stored[e : e + 32].copy_(self._fp8(min(32, c.experts - e), 3 * part).view(torch.uint8))
        self._experts = {
            name: stored[:, at * part : (at + 1) * part]
            for at, name in enumerate(("gate_proj", "up_proj", "down_proj"))
        }

    def value(self, name: str, one: Expected) -> Tensor:
        """On the host, of the type that the release has it in."""
        if ".mlp.experts." in name:
            return self._expert(name, one.shape)
        if one.dtypes == ("I64",):
            return self._hash(name)
        if name.endswith("ngram_embedding.weight_scale"):
            return torch.tensor([1 / SPREAD])
        if ".shard_" in name:
            return self._fp8(*one.shape).cpu()
        return self._dense(name, one.shape).to(torch.bfloat16).cpu()

    def _normal(self, *shape: int, std: float = 1.0) -> Tensor:
        return torch.empty(*shape, device=self.device).normal_(0.0, std, generator=self.generator)

    def _fp8(self, *shape: int) -> Tensor:
        return self._normal(*shape, std=SPREAD).clamp_(-440, 440).to(torch.float8_e4m3fn)

    def _expert(self, name: str, shape: tuple[int, ...]) -> Tensor:
        prefix, _, rest = name.partition(".mlp.experts.")
        number, matrix, leaf = rest.split(".")
        layer = len(self.config.layers) if prefix.startswith("mtp.") else int(prefix.rpartition(".")[2])
        if leaf == "weight":
            drawn = self._experts[matrix][(int(number) + STEP * layer) % self.config.experts]
            return drawn.view(torch.float8_e4m3fn).view(shape)
        width = self.config.expert_width / 9 if matrix == "down_proj" else self.config.hidden
        scale = (0.5 + torch.rand(*shape, generator=self.generator, device=self.device)) / (SPREAD * width**0.5)
        return scale.cpu()

    def _hash(self, name: str) -> Tensor:
        sizes = hash_sizes(self.config, 0)
        if name.endswith("layer_multipliers"):
            return torch.tensor(hash_multipliers(self.config, 0))
        if name.endswith("vocab_sizes"):
            return torch.tensor(sizes)
        return torch.tensor([sum(sizes[:i]) for i in range(len(sizes))])

    def _dense(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith("A_log"):
            return self._normal(*shape)
        if name.endswith("dt_bias"):
            return self._normal(*shape) - 2
        if name.endswith("linear_attn.norm.weight"):
            return 1 + self._normal(*shape, std=0.1)
        if len(shape) == 1:  # zero-centred norms
            return self._normal(*shape, std=0.1)
        if name.endswith("conv1d.weight"):
            return self._normal(*shape, std=0.5)
        if name.endswith("embed_tokens.weight"):
            return self._normal(*shape)
        gain = next((gain for part, gain in GAINS.items() if f"{part}.weight" in name), 1.0)
        return self._normal(*shape, std=gain / shape[-1] ** 0.5)


def write_file(
    path: Path, names: Iterable[str], tensors: dict[str, Expected], draw: Draw, writers: ThreadPoolExecutor
) -> int:
    """One safetensors file; its bytes. Every expert begins at a multiple of 16 bytes, which few real files see to."""

    def place(name: str) -> int:
        odd = tensors[name].dtypes == ("I64",) or name.endswith("ngram_embedding.weight_scale")
        return 2 + name.endswith("scale") if odd else ".mlp.experts." in name

    ordered = sorted(names, key=place)
    sizes = {name: nbytes(name, tensors[name]) for name in ordered}
    header: dict[str, Any] = {}
    at = 0
    for name in ordered:
        kind = NAMES[kind_of(name, tensors[name])]
        header[name] = {"dtype": kind, "shape": tensors[name].shape, "data_offsets": [at, at + sizes[name]]}
        at += sizes[name]
    raw = json.dumps(header).encode()
    raw += b" " * (-(8 + len(raw)) % 16)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.pwrite(file, len(raw).to_bytes(8, "little") + raw, 0)
        base = 8 + len(raw)
        os.truncate(file, base + at)
        waiting = []
        for name in ordered:
            value = draw.value(name, tensors[name])
            begin = base + header[name]["data_offsets"][0]
            waiting.append(writers.submit(put, file, value, begin))
        for one in waiting:
            one.result()
    finally:
        os.close(file)
    return base + at


def put(file: int, value: Tensor, at: int) -> None:
    """A tensor's bytes into a file, from `at` on."""
    view = memoryview(value.reshape(-1).view(torch.uint8).numpy())
    while view:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done


def kind_of(name: str, one: Expected) -> torch.dtype:
    """The type that a tensor is written in."""
    if one.dtypes == ("I64",):
        return torch.int64
    if one.dtypes == ("F8_E4M3",):
        return torch.float8_e4m3fn
    return torch.float32 if "weight_scale" in name else torch.bfloat16


def nbytes(name: str, one: Expected) -> int:
    return prod(one.shape) * kind_of(name, one).itemsize
