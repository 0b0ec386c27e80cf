"""What HTTP and scheduling cost a token: the uniform engine behind a real server process, 8 streams, no model.

    python -m tests.bench.serving_overhead [--streams 8] [--tokens 2000] [--runs 5] [--json FILE]

Prints CPU of the server a token (target: at most 150 us) and the delay of its event loop while the worker is busy
(target: p99 under 5 ms), seen as the time that `GET /health` takes beside an idle server's.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

TARGET_MICROSECONDS, TARGET_DELAY = 150.0, 0.005


class Server:
    """A `carousel-server` process with the uniform engine."""

    def __init__(self, streams: int, tokens: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        token = Path(self._folder.name) / "token"
        token.write_text("bench")
        command = [sys.executable, "-m", "carousel_server", "serve", "--engine", "uniform", "--host", "127.0.0.1"]
        command += ["--port", "0", "--admin-port", "0", "--admin-token", str(token), "--no-access-log"]
        command += ["--limits-active-requests", str(streams), "--gpu-state-slots", str(min(16, streams))]
        command += ["--limits-max-output-tokens", str(tokens), "--output-queue-bytes", "64Mi"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{json.loads(self.process.stdout.readline())['port']}"
        while not self._serving():
            time.sleep(0.1)

    def _serving(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def cpu_seconds(self) -> float:
        """CPU of all its threads so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self._folder.cleanup()


def stream(url: str, number: int, tokens: int, counts: list[int]) -> None:
    """Read one stream and count what it brought."""
    body = {"messages": [{"role": "user", "content": f"stream {number}"}], "stream": True, "max_tokens": tokens}
    letters = re.compile(rb'"content":"([a-z]+)"')
    found = 0
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=300) as reply:
        for piece in reply.iter_raw():
            found += sum(len(match) for match in letters.findall(piece))
    counts[number] = found


def probe(url: str, stop: threading.Event, delays: list[float]) -> None:
    """How long a tiny request takes, again and again."""
    with httpx.Client(base_url=url) as client:
        while not stop.is_set():
            began = time.perf_counter()
            client.get("/health")
            delays.append(time.perf_counter() - began)
            time.sleep(0.01)


def measure(server: Server, streams: int, tokens: int) -> dict[str, float]:
    """One run."""
    counts, delays, stop = [0] * streams, [], threading.Event()
    watcher = threading.Thread(target=probe, args=(server.url, stop, delays))
    threads = [threading.Thread(target=stream, args=(server.url, n, tokens, counts)) for n in range(streams)]
    before, began = server.cpu_seconds(), time.perf_counter()
    watcher.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, used = time.perf_counter() - began, server.cpu_seconds() - before
    stop.set()
    watcher.join()
    total = sum(counts)
    ordered = sorted(delays)
    return {
        "tokens": total,
        "cpu_microseconds_per_token": 1e6 * used / max(1, total),
        "tokens_per_second": total / wall,
        "health_p50": ordered[len(ordered) // 2],
        "health_p99": ordered[int(len(ordered) * 0.99)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    server = Server(options.streams, options.tokens)
    try:
        idle: list[float] = []
        stop = threading.Event()
        threading.Timer(1.0, stop.set).start()
        probe(server.url, stop, idle)
        measure(server, options.streams, 200)
        runs = [measure(server, options.streams, options.tokens) for _ in range(options.runs)]
    finally:
        server.stop()
    base = statistics.median(idle)
    print(f"{'what':<28}{'target':>12}{'median':>12}{'least':>12}{'most':>12}")
    for name, target in (("cpu_microseconds_per_token", TARGET_MICROSECONDS), ("tokens_per_second", None)):
        values = [run[name] for run in runs]
        shown = "" if target is None else f"{target:.0f}"
        print(f"{name:<28}{shown:>12}{statistics.median(values):>12.1f}{min(values):>12.1f}{max(values):>12.1f}")
    delays = [max(0.0, run["health_p99"] - base) for run in runs]
    median = statistics.median(delays)
    print(f"{'loop delay p99, ms':<28}{1e3 * TARGET_DELAY:>12.1f}{1e3 * median:>12.2f}", end="")
    print(f"{1e3 * min(delays):>12.2f}{1e3 * max(delays):>12.2f}")
    if options.json:
        options.json.write_text(json.dumps({"runs": runs, "idle_health_median": base}, indent=1))
    cost = statistics.median(run["cpu_microseconds_per_token"] for run in runs)
    return int(cost > TARGET_MICROSECONDS or median > TARGET_DELAY)


if __name__ == "__main__":
    sys.exit(main())
