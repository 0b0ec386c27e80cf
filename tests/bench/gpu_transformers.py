"""Logits of the GPU engine at the released shapes against transformers' own implementation, on the same device.

    python -m tests.bench.gpu_transformers [--folder /dev/shm/released] [--layers 8] [--json FILE]
    TRITON_INTERPRET=1 python -m tests.bench.gpu_transformers --small     the same at tiny sizes on the CPU

A checkpoint in the FP8 release layout is written to files and loaded by both: by the engine as it is, by transformers
in fp32 with FP8 widened (8 layers: 20 GB of files, 90 GB of fp32 on the device). Compared are the logits of every row
of a prompt within and one beyond the budget of sparse attention, and 16 decoded rows behind each, teacher-forced; once
with fp32 activations and caches in the engine, which shows whether the operations are the same, once as it serves.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from carousel_kernels.fp8.reference import dequantize
from carousel_server.engine import gpu_prefill, gpu_start
from carousel_server.engine.checkpoint import Checkpoint
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.layout import TEXT
from torch import Tensor

from tests.bench.gpu_random_model import released_config
from tests.bench.released_files import roomy, write
from tests.model.engine_kit import GREEDY

DECODED = 16
ALLOWED = {  # relative error of a row's logits that this share of the rows must not exceed
    "fp32": (2e-3, 0.98),
    "bf16": (8e-2, 0.95),  # random weights choose experts by hair's breadths: one other choice is some 5e-2
}
MROPE = {"mrope_section": [11, 11, 10], "mrope_interleaved": True}


def text_config(layers: int, small: bool) -> dict[str, Any]:
    """Both sides read it: what the engine has no use for is here too."""
    text = released_config(layers, ngram_base=101 if small else 200_000)
    text |= {"hidden_act": "silu", "norm_topk_prob": True, "attention_bias": False, "tie_word_embeddings": False}
    text |= {"mamba_ssm_dtype": "float32", "full_attention_interval": 4, "indexer_kv_heads": 1, "seed": 1234}
    text["rope_parameters"] = {**text["rope_parameters"], **MROPE}
    if small:
        text |= {
            "vocab_size": 3072, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32, "linear_num_key_heads": 2,
            "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_experts": 8,
            "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
            "hc_lowrank": 16, "ple_embed_dim": 64, "split_ngram_parts": 4, "indexer_head_dim": 16,
            "indexer_budget": 32, "eos_token_id": 500, "max_position_embeddings": 4096,
        }  # fmt: skip
        text["rope_parameters"] |= {"mrope_section": [2, 1, 1]}
    return text


def transformers_model(checkpoint: Checkpoint, device: torch.device) -> Any:
    """transformers' causal model in fp32, each of its tensors filled by name from the files."""
    from transformers import Qwen4ExpForCausalLM
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

    config = json.loads((checkpoint.folder / "config.json").read_text())["text_config"]
    config = Qwen4ExpTextConfig(**config | {"dtype": "float32"})
    with torch.device(device):
        model = Qwen4ExpForCausalLM(config)
    model.set_experts_implementation("eager")
    model = model.to(device).eval()
    for name, target in model.state_dict().items():
        fill(target, name, checkpoint)
    return model


def fill(target: Tensor, name: str, checkpoint: Checkpoint) -> None:
    """One tensor of transformers', in place."""
    stored = TEXT + name.removeprefix("model.") if name.startswith("model.") else name
    c = checkpoint.config
    if ".mlp.experts." in stored:
        prefix, _, leaf = stored.rpartition(".")
        parts = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else ("down_proj",)
        for e in range(c.experts):
            names = [f"{prefix}.{e}.{part}" for part in parts]
            pairs = [(checkpoint.tensor(f"{n}.weight"), checkpoint.tensor(f"{n}.weight_scale_inv")) for n in names]
            target[e].copy_(torch.cat([dequantize(w.to(target.device), s.to(target.device)) for w, s in pairs]))
    elif stored.endswith("ngram_embedding.weight"):
        table = stored.removesuffix(".weight")
        scale = float(checkpoint.tensor(f"{table}.weight_scale"))
        shards = [checkpoint.tensor(f"{table}.shard_{i}.weight") for i in range(c.ngram_shards)]
        target.copy_(torch.cat([s.to(target.device).float() * scale for s in shards]))
    else:
        target.copy_(checkpoint.tensor(stored))


@contextmanager
def streams_of_prompts() -> Iterator[list[Tensor]]:
    """The streams of each chunk of a prompt that is fed meanwhile; behind it they have passed all layers."""
    found: list[Tensor] = []
    embed = gpu_prefill.step.embed

    def noted(*arguments: Tensor) -> None:
        found.append(arguments[-1])
        embed(*arguments)

    with patch.object(gpu_prefill.step, "embed", noted):
        yield found


def engine_logits(engine: GpuEngine, tokens: list[int], prompt: int) -> Tensor:
    """[len(tokens), V]: of the prompt's rows and, one step each, of the rows behind it."""
    seq = engine.create(len(tokens))
    with streams_of_prompts() as chunks:
        engine.prefill(seq, tokens[:prompt])
    out = torch.empty(len(tokens), engine.config.vocab, device=engine.state.logits.device)
    with torch.inference_mode():
        streams = torch.cat(chunks)
        for at in range(0, prompt, 4):
            engine.forward.logits(streams[at : at + 4], engine.forward.weights.mixer, out[at : min(at + 4, prompt)])
        assert seq.slot is not None
        assert torch.equal(out[prompt - 1], engine.state.logits[seq.slot]), "not the rows that were fed"
        for at in range(prompt, len(tokens)):
            engine.step(seq, tokens[at], GREEDY, 0)
            out[at] = engine.state.logits[seq.slot]
    engine.release(seq)
    return out


def compare(found: Tensor, wanted: Tensor) -> dict[str, float]:
    """Relative errors of the rows, and how many have the same best token."""
    errors = torch.stack(
        [(a.double() - b.double()).norm() / b.double().norm() for a, b in zip(found, wanted, strict=True)]
    )
    errors = torch.nan_to_num(errors, nan=float("inf"))
    same = (found.argmax(-1) == wanted.argmax(-1)).float().mean()
    return {
        "rows": len(errors),
        "median": float(errors.median()),
        "p95": float(errors.quantile(0.95)),
        "p98": float(errors.quantile(0.98)),
        "largest": float(errors.max()),
        "same best token": float(same),
    }


def run(
    folder: Path, device: torch.device, lengths: tuple[int, int], decoded: int, text: dict[str, Any]
) -> dict[str, Any]:
    """Everything; the table is printed as it comes. On a CPU only fp32: the interpreter's bf16 products are wrong."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    began = time.perf_counter()
    size = write(folder, text, device, drafts=False)
    say(began, f"{size / 1e9:.1f} GB written to {folder}")
    checkpoint = Checkpoint(folder)
    draw = torch.Generator().manual_seed(1)
    below = min(checkpoint.config.vocab, 248_000) - 1
    prompts = [torch.randint(0, below, (n + decoded,), generator=draw).tolist() for n in lengths]
    wanted = []
    with torch.inference_mode():
        model = transformers_model(checkpoint, device)
        say(began, f"transformers' model filled, {sum(p.nbytes for p in model.parameters()) / 1e9:.1f} GB")
        for tokens in prompts:
            ids = torch.tensor([tokens], device=device)
            wanted.append(model(ids, use_cache=False).logits[0].float())
            say(began, f"transformers: {len(tokens)} tokens")
        del model
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    result: dict[str, Any] = {"bytes": size, "prompts": list(lengths)}
    missed = []
    for kind, exact in (("fp32", True), ("bf16", False))[: 2 if device.type == "cuda" else 1]:
        engine = gpu_start.start(
            folder,
            context_tokens=lengths[1] + decoded,
            slots=1,
            drafts=0,
            prefill_rows=8192,
            device=device,
            exact=exact,
        )
        say(began, f"engine loaded from the files, activations and caches {kind}")
        for prompt, tokens, logits in zip(lengths, prompts, wanted, strict=True):
            found = engine_logits(engine, tokens, prompt)
            for part, rows in (("prefill", slice(0, prompt)), ("decode", slice(prompt, None))):
                figures = compare(found[rows], logits[rows])
                result[f"{kind} {part} {prompt}"] = figures
                shown = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
                say(began, f"{kind}, {part} of a prompt of {prompt}: {shown}")
                most, share = ALLOWED[kind]
                if figures["p98" if share == 0.98 else "p95"] > most:
                    missed.append(f"{kind} {part} {prompt}: more than {1 - share:.0%} of the rows are off by {most}")
        del engine
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    result["missed"] = missed
    return result


def say(began: float, what: str) -> None:
    print(f"{time.perf_counter() - began:7.1f} s  {what}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    parser.add_argument("--layers", type=int, default=8, help="a multiple of 4")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true", help="tiny sizes, on the CPU, kernels interpreted")
    options = parser.parse_args()
    small = options.small
    device = torch.device("cpu" if small else "cuda")
    lengths, decoded = ((5, 37), 2) if small else ((300, 2300), DECODED)
    with tempfile.TemporaryDirectory(dir=None if small else roomy(options.layers)) as temporary:
        folder = options.folder or Path(temporary)
        result = run(folder, device, lengths, decoded, text_config(4 if small else options.layers, small))
    import transformers

    result |= {"transformers": transformers.__version__, "torch": torch.__version__}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    for line in result["missed"]:
        print(f"MISSED: {line}")
    return int(bool(result["missed"]))


if __name__ == "__main__":
    sys.exit(main())
