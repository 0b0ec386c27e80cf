"""The FP8 release layout of a BF16 or fp32 checkpoint: one tensor an expert with 128 x 128 scales, one scale a table."""
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LARGEST = 448.0  # of float8_e4m3fn
BLOCK = 128


def quantize(weight):
    """(float8 weight, scale of each block) of a matrix."""
    rows, columns = weight.shape
    down, across = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = torch.zeros(down * BLOCK, across * BLOCK)
    padded[:rows, :columns] = weight.float()
    tiles = padded.view(down, BLOCK, across, BLOCK)
    scale = (tiles.abs().amax((1, 3)) / LARGEST).clamp_min(1e-12)
    quantized = (tiles / scale[:, None, :, None]).view(padded.shape)[:rows, :columns]
    return quantized.to(torch.float8_e4m3fn).contiguous(), scale


def widen(weight, scale):
    """What the layout says a quantised matrix is, entry by entry."""
    rows = torch.arange(weight.shape[0]) // BLOCK
    columns = torch.arange(weight.shape[1]) // BLOCK
    return weight.float() * scale.float()[rows][:, columns]


def make_fp8(source, folder, widened):
    """Write the FP8 layout of `source` into `folder`, and the same values as a fused fp32 checkpoint into `widened`."""
    source, folder, widened = Path(source), Path(folder), Path(widened)
    fp8, wide = {}, {}
    tensors = load_file(source / "model.safetensors")
    tables = {}
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            prefix = name.rsplit(".", 1)[0]
            stacked = []
            for e, matrix in enumerate(tensor):
                parts = matrix.chunk(2) if "gate_up" in name else (matrix,)
                for leaf, part in zip(("gate", "up") if "gate_up" in name else ("down",), parts):
                    weight, scale = quantize(part)
                    fp8[f"{prefix}.{e}.{leaf}_proj.weight"], fp8[f"{prefix}.{e}.{leaf}_proj.weight_scale_inv"] = weight, scale
                    stacked.append(widen(weight, scale))
            wide[name] = torch.cat(stacked).view(tensor.shape)
        elif re.search(r"ngram_embedding\.shard_\d+\.weight$", name):
            tables.setdefault(name.split(".shard_")[0], []).append(name)
        else:
            fp8[name] = tensor
            wide[name] = tensor.float() if tensor.is_floating_point() else tensor
    for table, names in tables.items():
        scale = max(tensors[n].abs().max() for n in names).float().view(1) / LARGEST
        fp8[f"{table}.weight_scale"] = scale
        for name in names:
            fp8[name] = (tensors[name].float() / scale).to(torch.float8_e4m3fn)
            wide[name] = fp8[name].float() * scale
    for target, values in ((folder, fp8), (widened, wide)):
        target.mkdir(parents=True, exist_ok=True)
        for extra in source.glob("*.json"):
            shutil.copy(extra, target)
        save_file({k: v.contiguous() for k, v in values.items()}, target / "model.safetensors")
    return folder, widened
