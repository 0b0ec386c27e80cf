"""Tokens a second over HTTP against those of the engine's own steps: one process, one model, runs that take turns.

    python -m tests.bench.gpu_http [--layers 48] [--json FILE]      at the released shapes, random weights
    python -m tests.bench.gpu_decode FILE http                      the same, behind that bench, with its model
    python -m tests.bench.gpu_http --embedded                       the embedded model on the CPU: tries the bench

The server is the whole one with both its ports; the client is another process. The rate is that of the time in which
every stream runs, from first tokens to last: what comes before is the prefill. Every token shows as one letter.
"""

import argparse
import gc
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from carousel_server import loader
from carousel_server.engine.byte_vocabulary import ByteVocabulary
from carousel_server.engine.protocol import Engine, SamplerParams

from tests.bench.stream_client import Client
from tests.server.http_kit import Running, chat_body, running

GREEDY = SamplerParams()
TOKENS = 256
RUNS = 5
TARGET = 0.9
PROMPT = "The ships lie in the harbour until the evening wind comes. " * 8


class Letters(ByteVocabulary):
    """Shows any token as a letter: most ids of a model with random weights are no bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.stop_tokens = frozenset()

    def token_bytes(self, token: int) -> bytes:
        return bytes((ord("a") + token % 26,))


def load_with(engine: Engine) -> Any:
    """The server's load, with this engine and letters for its tokens."""
    load = loader.load_model

    def loading(sketch: loader.Blueprint, progress: Any) -> loader.Loaded:
        return replace(load(sketch, progress), vocabulary=Letters(), make_engine=lambda: engine)

    return loading


def steps(engine: Engine, streams: int, rows: int) -> float:
    """Tokens a second of the engine alone, its sequences taking turns."""
    seqs = [engine.create(rows + TOKENS) for _ in range(streams)]
    for seq in seqs:
        engine.prefill(seq, [n % 200 for n in range(rows)])
    tokens = [engine.select(seq, GREEDY).token for seq in seqs]
    began = time.perf_counter()
    for _ in range(TOKENS - 1):
        for at, seq in enumerate(seqs):
            tokens[at] = engine.step(seq, tokens[at], GREEDY, 0)[-1].token
    seconds = time.perf_counter() - began
    for seq in seqs:
        engine.release(seq)
    return streams * (TOKENS - 1) / seconds


def over_http(server: Running, client: Client, streams: int, number: int) -> tuple[float, float]:
    """Tokens a second while every stream runs, and the seconds to the first one's first token."""
    bodies = [chat_body(f"{number} {n} {PROMPT}", max_tokens=TOKENS) for n in range(streams)]
    found = client.read(server.port, bodies)
    if any(sum(one["counts"]) != TOKENS for one in found):
        raise SystemExit(f"not {TOKENS} tokens each: {found}")
    begin, end = max(one["times"][0] for one in found), min(one["times"][-1] for one in found)
    arrivals = [arrival for one in found for arrival in zip(one["times"], one["counts"], strict=True)]
    made = sum(count for at, count in arrivals if begin < at <= end)
    return made / (end - begin), min(one["times"][0] - one["began"] for one in found)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "low": min(values), "high": max(values), "runs": len(values)}


def measure(engine: Engine, runs: int = RUNS) -> dict[str, Any]:
    """Needs two free slots. Prints the table and returns it."""
    sys.setswitchinterval(0.0005)  # as carousel_server.server.serve does
    gc.collect()
    gc.freeze()
    settings = {"limits.maxOutputTokens": TOKENS, "limits.checkpointBytes": "1Gi", "limits.prefixCache.bytes": "2Gi"}
    result: dict[str, Any] = {"tokens": TOKENS, "target": TARGET}
    client = Client()
    with running(settings=settings, load=load_with(engine)) as server:
        rows = server.chat(f"0 0 {PROMPT}", max_tokens=1).raise_for_status().json()["usage"]["prompt_tokens"]
        for streams in (1, 2):
            alone, http, first = [], [], []
            for number in range(runs + 1):  # the first warms up
                rate, seconds = over_http(server, client, streams, number)
                http.append(rate)
                first.append(seconds)
                server.idle(30)
                alone.append(steps(engine, streams, rows))
            row = {"steps": spread(alone[1:]), "http": spread(http[1:]), "first_token_s": spread(first[1:])}
            row["ratio"] = row["http"]["median"] / row["steps"]["median"]  # type: ignore[assignment]
            result[f"streams {streams}"] = row
            print(
                f"{streams} of {TOKENS} tokens behind {rows}: over HTTP {row['http']['median']:.1f} tok/s "
                f"({row['http']['low']:.1f} to {row['http']['high']:.1f}), the engine's steps alone "
                f"{row['steps']['median']:.1f} ({row['steps']['low']:.1f} to {row['steps']['high']:.1f}), ratio "
                f"{row['ratio']:.3f}; first token after {row['first_token_s']['median']:.3f} s",
                flush=True,
            )
    client.close()
    one, two = result["streams 1"], result["streams 2"]
    result["two_of_one"] = two["http"]["median"] / one["http"]["median"]
    print(f"two streams together run at {result['two_of_one']:.3f} of one's rate")
    print(f"ratio {one['ratio']:.3f}, target {TARGET}: {'reached' if one['ratio'] >= TARGET else 'MISSED'}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=48, help="a multiple of 4; the released model has 48")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--embedded", action="store_true", help="the embedded model on the CPU")
    options = parser.parse_args()
    if options.embedded:
        from carousel_server.engine import load

        engine: Engine = load("embedded", context_tokens=2048, slots=2, drafts=0, threads=1)
        engine.info = replace(engine.info, stop_tokens=frozenset())
        where = {"device": "cpu", "model": "embedded"}
    else:
        from tests.bench.gpu_random_model import build, released

        began = time.perf_counter()
        engine = build(released(options.layers), saved_bytes=3 * 2**30).engine
        torch.cuda.synchronize()
        print(f"{options.layers} layers built in {time.perf_counter() - began:.1f} s", flush=True)
        where = {"device": torch.cuda.get_device_name(), "model": f"{options.layers} layers, random"}
    result = {**where, "torch": torch.__version__, **measure(engine, options.runs)}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
