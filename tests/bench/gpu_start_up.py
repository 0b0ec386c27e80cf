"""From exec to ready and to the first token: `carousel-server serve` as a process, phase by phase.

    python -m tests.bench.gpu_start_up [--layers 12] [--folder /dev/shm/released] [--runs 3] [--json FILE]
    python -m tests.bench.gpu_start_up --device cpu        the embedded model and a tiny checkpoint: tries the bench

The embedded model cold (no kernel is compiled yet) and warm; then a checkpoint in the FP8 release layout at the
released widths, written here: 12 layers and the draft head are 33 GB. Its files lie in memory already, as a page cache
that is warm has them. From it the released 131 GB on the GPU (48 layers) are extrapolated, which is no measurement.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import torch

from tests.bench.gpu_transformers import text_config
from tests.bench.released_files import roomy, write
from tests.bench.stream_client import read
from tests.server.http_kit import chat_body

RELEASED = 48, 131e9  # layers, and bytes that go to the GPU
WAIT = 500.0


@contextmanager
def server(flags: Sequence[str], cache: Path, log: Path) -> Iterator[tuple[float, int]]:
    """When it was started, and its client port once it listens. `cache`: where Triton keeps compiled kernels."""
    command = [sys.executable, "-m", "carousel_server", "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--admin-port", "0", "--served-name", "chat", "--no-access-log", *flags]
    began = time.monotonic()
    with log.open("w") as errors:
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "TRITON_CACHE_DIR": str(cache)},
        )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: {log.read_text()[-2000:]}")
        try:
            yield began, json.loads(line)["port"]
        except httpx.ConnectError:
            raise SystemExit(f"the server ended with {child.wait(60)}: {log.read_text()[-2000:]}") from None
        child.terminate()
        if child.wait(60):
            raise SystemExit(f"the server ended with {child.returncode}: {log.read_text()[-2000:]}")
    finally:
        child.kill()
        child.wait()


def start(flags: Sequence[str], cache: Path) -> dict[str, float]:
    """Seconds of each phase of one start, in order, and of the first two chats."""
    with tempfile.TemporaryDirectory() as folder, server(flags, cache, Path(folder) / "log") as (began, port):
        marks = [("interpreter, imports, plan", began), ("tokenizer and template", time.monotonic())]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT) as client:
            while (reply := client.get("/health")).status_code != 200:
                phase = phase_of(reply.json()["message"])
                if phase and phase != marks[-1][0]:
                    marks.append((phase, time.monotonic()))
                if time.monotonic() - began > WAIT:
                    raise SystemExit(f"not ready after {WAIT:.0f} s: {reply.text}")
                time.sleep(0.01)
        ready = time.monotonic()
        found: dict[str, float] = {}
        for (phase, at), (_, until) in pairwise([*marks, ("", ready)]):
            found[phase] = found.get(phase, 0.0) + until - at
        found["ready"] = ready - began
        for name in ("first", "second"):
            (stream,) = read(port, [chat_body(f"Hello, this is the {name} one.", max_tokens=4)])
            # random weights may choose tokens without text: then the stream's end, a few tokens later, is what is seen
            found[f"{name} chat's first token"] = (stream["times"] or [stream["ended"]])[0] - stream["began"]
        return found


def phase_of(message: str) -> str:
    """A phase from what /health says; "" for what is none."""
    what = message.rpartition(": ")[2]
    if what.startswith("experts of layer"):
        return "experts"
    return "" if what.startswith(("reading the", "starting")) else what


def show(title: str, runs: list[dict[str, float]]) -> dict[str, Any]:
    print(f"\n{title}, {len(runs)} start{'s' if len(runs) > 1 else ''}", flush=True)
    out = {}
    for name in runs[-1]:
        values = [run.get(name, 0.0) for run in runs]
        out[name] = {"median": median(values), "low": min(values), "high": max(values)}
        print(f"  {name:<42}{median(values):8.2f} s  ({min(values):.2f} to {max(values):.2f})", flush=True)
    return out


def extrapolate(runs: list[dict[str, float]], size: int, layers: int) -> float:
    """Seconds to ready at the released size: loading grows with the bytes, kernels and graphs with the layers, the
    rest stays."""
    typical = {name: median([run.get(name, 0.0) for run in runs]) for name in runs[-1]}
    loading = sum(
        typical.get(name, 0.0) for name in ("dense weights", "n-gram table and experts", "mapping", "experts")
    )
    graphs = typical.get("kernels and graphs", 0.0)
    rest = typical["ready"] - loading - graphs
    seconds = rest + loading * RELEASED[1] / size + graphs * RELEASED[0] / layers
    print(
        f"  extrapolated, not measured: {RELEASED[1] / 1e9:.0f} GB and {RELEASED[0]} layers in {seconds:.1f} s: "
        f"{rest:.1f} s fixed, {loading:.1f} s x {RELEASED[1] / size:.2f} of loading (here "
        f"{size / 1e9 / max(loading, 1e-9):.1f} GB/s), {graphs:.1f} s x {RELEASED[0] / layers:.0f} of kernels and "
        f"graphs; the bytes alone at 55 GB/s: {RELEASED[1] / 55e9:.1f} s",
        flush=True,
    )
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, default=12, help="of the large checkpoint, a multiple of 4")
    parser.add_argument(
        "--folder", type=Path, help="where it goes (default: a temporary folder, in memory if it has room)"
    )
    parser.add_argument("--runs", type=int, default=3, help="warm starts of each")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    small = options.device == "cpu"
    result: dict[str, Any] = {"device": "cpu" if small else torch.cuda.get_device_name(), "torch": torch.__version__}
    flags = ["--device", options.device]
    with tempfile.TemporaryDirectory() as caches:
        cache = Path(caches)
        result["embedded, cold"] = show("embedded, no kernel compiled", [start(flags, cache)])
        result["embedded, warm"] = show("embedded, warm", [start(flags, cache) for _ in range(options.runs)])
        layers = 4 if small else options.layers
        with tempfile.TemporaryDirectory(dir=None if small else roomy(layers)) as temporary:
            folder, began = options.folder or Path(temporary), time.monotonic()
            size = write(folder, text_config(layers, small), torch.device(options.device))
            if not small:
                torch.cuda.empty_cache()  # the plan counts what is free
            print(f"\n{layers} layers, {size / 1e9:.1f} GB written in {time.monotonic() - began:.1f} s", flush=True)
            flags += ["--model", str(folder), "--engine-context-tokens", "512" if small else "8192"]
            less = ["--limits-prefix-cache-bytes", "1Gi", "--limits-checkpoint-bytes", "1Gi"]
            pool = ["--expert-pool-bytes", "1Mi" if small else "8Gi"]
            result |= {"bytes": size, "layers": layers}
            result["large, cold"] = show("large, no kernel compiled", [start(flags, cache)])
            for name, more in (
                ("default limits", []),
                ("1 GiB each of saved states", less),
                ("a pool", [*less, *pool]),
            ):
                runs = [start([*flags, *more], cache) for _ in range(options.runs)]
                result[f"large, {name}"] = show(f"large, {name}", runs)
                if more != [*less, *pool]:
                    result[f"large, {name}"]["extrapolated"] = extrapolate(runs, size, layers)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
