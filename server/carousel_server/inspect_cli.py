"""`carousel-server inspect MODEL`: check a checkpoint wholly, print what it is and what serving it would take."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carousel_server.config import ConfigError, add_flags, load_config
from carousel_server.memory_plan import MemoryPlan, plan
from carousel_server.model_shape import ModelShape
from carousel_server.units import human_bytes, parse_bytes

INVALID, MISSING, DOES_NOT_FIT = 64, 66, 78


def parser() -> argparse.ArgumentParser:
    """Flags of the command; limits and engine settings are those of `serve`."""
    found = argparse.ArgumentParser(
        prog="carousel-server inspect",
        description="Check a checkpoint's every tensor and print its sizes and memory plan. Loads no weights.",
        allow_abbrev=False,
    )
    found.add_argument("model", nargs="?", default="embedded", help="folder of a checkpoint (default: %(default)s)")
    found.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="plan for this device (default: cuda)")
    found.add_argument("--gpu-bytes", type=parse_bytes, help="GPU memory, such as 141G; unset: not checked")
    found.add_argument("--host-bytes", type=parse_bytes, help="container memory, such as 256Gi; unset: not checked")
    found.add_argument("--config", type=Path, help="TOML file with [limits] and [engine]")
    found.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_flags(found)
    return found


def main(argv: Sequence[str]) -> int:
    """Exit code 0; 64 for a wrong flag, 66 for a faulty checkpoint, 78 when the plan does not fit."""
    try:
        options = parser().parse_args(list(argv))
    except SystemExit as end:
        return INVALID if end.code else 0
    from carousel_server.engine import model_folder
    from carousel_server.engine.checkpoint import Checkpoint
    from carousel_server.engine.config import CheckpointError
    from carousel_server.engine.tokens import stop_tokens, valid_tokens

    folder = model_folder(options.model)
    try:
        text = options.config.read_text(encoding="utf-8") if options.config else ""
        config = load_config(toml=text, environment=os.environ, flags=vars(options))
        checkpoint = Checkpoint(folder)
        facts = {
            "valid_tokens": valid_tokens(folder, checkpoint.config),
            "stop_tokens": sorted(stop_tokens(folder, checkpoint.config)),
        }
        shape = ModelShape.from_config(json.loads((folder / "config.json").read_text("utf-8")), options.model)
    except (CheckpointError, ValueError) as error:
        if isinstance(error, ConfigError):
            return _end(INVALID, str(error))
        return _end(MISSING, str(error))
    except OSError as error:
        return _end(INVALID, str(error))
    planned = plan(
        shape,
        config.limits,
        config.engine,
        device=options.device,
        gpu_bytes=options.gpu_bytes,
        host_bytes=options.host_bytes,
    )
    if options.json:
        print(json.dumps(_object(checkpoint, facts, planned), indent=2))
    else:
        print("\n".join(_lines(checkpoint, facts, planned)))
    return 0 if planned.fits else DOES_NOT_FIT


def _object(checkpoint: Any, facts: dict[str, Any], planned: MemoryPlan) -> dict[str, Any]:
    return {
        "folder": str(checkpoint.folder),
        "layout": checkpoint.layout.name,
        "types": list(checkpoint.dtypes),
        "files": [path.name for path in checkpoint.files],
        "tensors": len(checkpoint.expected),
        "parameters": checkpoint.parameters(),
        "parts": checkpoint.sizes(),
        **facts,
        "plan": planned.to_dict(),
    }


def _lines(checkpoint: Any, facts: dict[str, Any], planned: MemoryPlan) -> list[str]:
    c, sizes = checkpoint.config, checkpoint.sizes()
    kinds = ["linear" if kind == "linear" else "attention" for kind in c.layers]
    total = sum(sizes.values())
    dense = (c.index_blocks + 1) * c.index_ratio - 1
    rows: tuple[tuple[str, str], ...] = (
        ("architecture", f"qwen4_exp, {checkpoint.parameters() / 1e6:,.2f} M parameters"),
        ("layers", f"{kinds.count('linear')} gated DeltaNet, {kinds.count('attention')} sparse attention"),
        ("n-gram table", "at layer " + ", ".join(map(str, c.ngram_layers)) if c.ngram_layers else "none"),
        ("width", f"{c.hidden} in {c.streams} streams"),
        ("attention", f"{c.heads} heads on {c.kv_heads} of {c.head_dim}"),
        ("DeltaNet", f"{c.delta_value_heads} heads on {c.delta_key_heads} of {c.delta_value_dim}"),
        (
            "experts",
            f"{c.experts} of {c.expert_width}, {c.experts_per_token} a token; a shared one of {c.shared_width}",
        ),
        ("sparse", f"{c.index_blocks} blocks of {c.index_ratio} tokens, dense up to {dense} tokens"),
        ("vocabulary", f"{facts['valid_tokens']:,} tokens in {c.vocab:,} rows"),
        ("stop tokens", ", ".join(map(str, facts["stop_tokens"]))),
        ("context", f"{c.max_positions:,} tokens"),
        ("layout", checkpoint.layout.name),
        ("files", f"{len(checkpoint.files)} with {len(checkpoint.expected)} tensors, {', '.join(checkpoint.dtypes)}"),
    )
    lines = [
        str(checkpoint.folder),
        *(f"  {name:<14}{value}" for name, value in rows),
        "parts in the files",
        *(f"  {part:<26}{human_bytes(size):>10}  {100 * size / total:5.1f} %" for part, size in sizes.items()),
        f"  {'total':<26}{human_bytes(total):>10}",
    ]
    return [*lines, planned.table()]


def _end(code: int, message: str) -> int:
    print(f"carousel-server inspect: {message}", file=sys.stderr, flush=True)
    return code
