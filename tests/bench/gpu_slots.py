"""Two chats that take turns in one slot, at the real shapes. `python -m tests.bench.gpu_slots [out.json] [layers]`

A turn saves one chat, restores the other and feeds it a token. The floor of the switch is what must cross the bus at
55 GB/s: the new row out, and everything of the other chat in; what a save sends beside the row goes the other way at
the same time. Both chats must say what they say alone, or nothing is reported.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from carousel_server.engine.gpu import GpuEngine
from carousel_server.engine.protocol import SamplerParams

from tests.bench.device_events import device_events
from tests.bench.gpu_decode import commit
from tests.bench.gpu_random_model import build, released

GREEDY, ROWS, CONTEXT, STEPS, RUNS = SamplerParams(), 2000, 8192, 16, 6
GBS = 55.0


def now() -> float:
    """Milliseconds, everything on the device done."""
    torch.cuda.synchronize()
    return 1000 * time.perf_counter()


def spread(times: list[float]) -> dict[str, float]:
    """Of all but the first, which warms up."""
    return {"ms": median(times[1:]), "low": min(times[1:]), "high": max(times[1:]), "runs": len(times) - 1}


def begin(engine: GpuEngine, seed: int) -> tuple[Any, list[int]]:
    """A chat of ROWS random tokens, and its first answer."""
    seq = engine.create(CONTEXT)
    engine.prefill(seq, torch.randint(0, 248000, (ROWS,), generator=torch.Generator().manual_seed(seed)).tolist())
    return seq, [engine.select(seq, GREEDY).token]


def feed(engine: GpuEngine, chat: tuple[Any, list[int]]) -> None:
    seq, out = chat
    out.append(engine.step(seq, out[-1], GREEDY, 0)[-1].token)


def alone(engine: GpuEngine, seed: int, count: int) -> tuple[list[int], list[float]]:
    """What a chat says in a slot of its own, and ms a step of each run."""
    chat, times = begin(engine, seed), []
    for _ in range(count // STEPS):
        at = now()
        for _ in range(STEPS):
            feed(engine, chat)
        times.append((now() - at) / STEPS)
    engine.release(chat[0])
    return chat[1], times


def each_way(engine: GpuEngine, seq: Any) -> tuple[list[float], list[float], list[float]]:
    """ms of a save of everything (a snapshot), until the slot is free and until it has left; and of a load."""
    freed, left, loaded = [], [], []
    for _ in range(RUNS):
        at = now()
        snapshot = engine.snapshot(seq)
        engine.saves.join(seq.slot)
        torch.cuda.current_stream().synchronize()
        freed.append(1000 * time.perf_counter() - at)
        engine.idle()
        left.append(now() - at)
        engine.suspend(seq)
        engine.idle()
        at = now()
        engine.resume(seq)
        loaded.append(now() - at)
        del snapshot
    return freed, left, loaded


def timeline(engine: GpuEngine, chats: list[Any]) -> list[tuple[str, float, float]]:
    """A turn on the device: what ran, from when to when, in ms from the first of it; the step's kernels as one."""

    def turn() -> None:
        engine.suspend(chats[1][0])
        engine.resume(chats[0][0])
        feed(engine, chats[0])
        torch.cuda.synchronize()
        engine.suspend(chats[0][0])
        engine.resume(chats[1][0])

    spans: list[tuple[str, float, float]] = []
    events = device_events(turn)
    begin = min(e.time_range.start for e in events)
    for e in sorted(events, key=lambda e: e.time_range.start):
        at, end = ((t - begin) / 1000 for t in (e.time_range.start, e.time_range.end))
        name = e.name if e.name.startswith(("_copy", "Mem")) else "step"
        if spans and spans[-1][0] == name == "step":
            at = spans.pop()[1]
        spans.append((name, at, end))
    return spans


def main() -> None:
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else 48
    bench = build(released(layers=layers), slots=1, context=CONTEXT, drafts=0, table_bytes=2**29, saved_bytes=2**31)
    engine, count = bench.engine, STEPS * RUNS
    layout = engine.saves.layout
    with torch.inference_mode():
        plain, times = zip(*(alone(engine, seed, count) for seed in (1, 2)), strict=True)
        step = spread(times[0])
        chats = []
        for seed in (1, 2):
            chats.append(begin(engine, seed))
            engine.suspend(chats[-1][0])
        first = True
        turns = []
        for _ in range(RUNS):
            at = now()
            for _ in range(STEPS):
                for i, chat in enumerate(chats):
                    if not first:
                        engine.suspend(chats[1 - i][0])
                    first = False
                    engine.resume(chat[0])
                    feed(engine, chat)
            turns.append((now() - at) / STEPS / 2)
        assert [out for _, out in chats] == list(plain), "the chats do not say what they say alone"
        turn = spread(turns)
        freed, left, loaded = map(spread, each_way(engine, chats[1][0]))
        spans = timeline(engine, chats)
        saved = chats[1][0].saved
    fixed, rows = layout.pages * layout.page, saved.length
    sent, read = fixed + layout.page, saved.nbytes
    needed = layout.token + fixed + rows * layout.token
    switch, floor = turn["ms"] - step["ms"], needed / GBS / 1e6
    lone = saved.nbytes / GBS / 1e6
    result = {
        "device": torch.cuda.get_device_name(), "commit": commit(), "layers": layers, "rows": rows,
        "bytes": {"out": sent, "in": read, "page": layout.page, "fixed": fixed, "token": layout.token},
        "step": step, "turn": turn, "switch_ms": switch, "floor_ms": floor, "ratio": switch / floor,
        "save_until_slot_is_free": freed, "save": left, "load": loaded, "one_way_floor_ms": lone,
        "timeline_of_a_turn": spans,
    }  # fmt: skip
    print(f"{layers} layers, two chats of {rows} rows, {sent / 2**20:.0f} MiB out and {read / 2**20:.0f} MiB in a turn")
    for name, r in (("step in its own slot", step), ("turn with a switch", turn)):
        print(f"  {name:<40}{r['ms']:8.3f} ms ({r['low']:.3f} to {r['high']:.3f}, {r['runs']} runs)")
    print(f"  {'switch':<40}{switch:8.3f} ms, floor {floor:.3f}, ratio {switch / floor:.2f}")
    for name, r in (("whole save, slot free", freed), ("whole save, sent", left), ("whole load", loaded)):
        ratio = r["ms"] / lone
        print(f"  {name:<40}{r['ms']:8.3f} ms ({r['low']:.3f} to {r['high']:.3f}), floor {lone:.3f}, ratio {ratio:.2f}")
    for what, at, end in spans:
        print(f"  {at:8.3f} to {end:8.3f} ms  {what[:60]}")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
