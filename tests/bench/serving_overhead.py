"""What HTTP and scheduling cost a token: 8 streams through a server process whose engine does nothing.

    python -m tests.bench.serving_overhead [--streams 8] [--tokens 6000] [--rounds 10] [--runs 5] [--json FILE]
        [--real-time]

Two loads. `flat out`: the engine never waits, so the worker is always busy; the targets are CPU of the server a token
(at most 150 us) and the delay of its event loop (p99 under 5 ms): how late a timer of that loop is, seen inside the
server. `paced`: the engine waits 2 ms before each token, as a fast model would, so every token wakes the writer and is
a write of its own. CPU is that of all threads of the server's process, the engine's few microseconds and the kernel's
part of the sockets included; the clients are another process. On a machine with other work, `--real-time` (as root)
keeps that work off the server: the delay of a loop whose thread is not running says nothing about the server.
"""

import argparse
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

TARGET_MICROSECONDS, TARGET_MILLISECONDS = 150.0, 5.0
PACE_MS = 2
CONTENT = re.compile(rb'"content":"([a-z]+)"')
WRITE = re.compile(rb"\r\n[0-9a-f]+\r\ndata: ")  # a chunk of the transfer encoding is one write of the server


@dataclass
class Cpu:
    """CPU seconds of a process so far: of its first thread, which is the event loop, and of the others."""

    loop: float
    others: float

    @classmethod
    def of(cls, pid: int) -> "Cpu":
        seconds = {}
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            seconds[task.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        loop = seconds.pop(str(pid))
        return cls(loop, sum(seconds.values()))


class Server:
    """A server process with a test engine. `stop` gives the delays that its loop had, if they were `watched`."""

    def __init__(self, engine: str, streams: int, tokens: int, *, watched: bool) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        (folder / "token").write_text("bench")
        self._delays = folder / "delays.json" if watched else None
        watch = ["tests.bench.watched_server", str(self._delays)] if watched else ["carousel_server"]
        command = [sys.executable, "-m", *watch, "serve", "--engine", engine, "--host", "127.0.0.1"]
        command += ["--port", "0", "--admin-port", "0"]
        command += ["--admin-token", str(folder / "token"), "--no-access-log"]
        command += ["--limits-active-requests", str(streams), "--engine-gpu-state-slots", str(streams)]
        command += ["--limits-max-output-tokens", str(tokens), "--engine-output-queue-bytes", "64Mi"]
        self._log = (folder / "log").open("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start: {self.log()}")
        self.port = json.loads(line)["port"]
        while httpx.get(f"http://127.0.0.1:{self.port}/health").status_code != 200:
            time.sleep(0.1)

    def log(self) -> str:
        """What it said so far."""
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> list[tuple[float, float]]:
        """End it with SIGTERM; an idle server goes within a second."""
        self.process.terminate()
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        if code != 0:
            raise SystemExit(f"the server ended with {code}: {self.log()}")
        delays = json.loads(self._delays.read_text()) if self._delays else []
        self._log.close()
        self._folder.cleanup()
        return [(at, late) for at, late in delays]


def read_streams(port: int, bodies: list[dict[str, Any]]) -> list[bytes]:
    """All streams at once from one thread, in which nothing but reading happens."""
    selector, received = selectors.DefaultSelector(), [bytearray() for _ in bodies]
    for number, body in enumerate(bodies):
        sock = socket.create_connection(("127.0.0.1", port), timeout=120)
        content = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(content)}"
        sock.sendall(head.encode() + b"\r\n\r\n" + content)
        selector.register(sock, selectors.EVENT_READ, number)
    while selector.get_map():
        ready = selector.select(timeout=120)
        if not ready:
            raise SystemExit("no stream brought anything for 120 s")
        for key, _ in ready:
            assert isinstance(key.fileobj, socket.socket)
            if piece := key.fileobj.recv(1 << 20):
                received[key.data] += piece
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()
    return [bytes(one) for one in received]


def measure(server: Server, message: str, streams: int, tokens: int, rounds: int = 1) -> dict[str, float]:
    """One run: `rounds` times all streams, so that a p99 has samples. Its bounds in monotonic seconds stay with it."""
    bodies = [
        {"messages": [{"role": "user", "content": message}], "stream": True, "max_tokens": tokens}
        for _ in range(streams)
    ]
    before, began = Cpu.of(server.process.pid), time.monotonic()
    replies = [reply for _ in range(rounds) for reply in read_streams(server.port, bodies)]
    ended, after = time.monotonic(), Cpu.of(server.process.pid)
    found = sum(len(text) for reply in replies for text in CONTENT.findall(reply))
    if found != rounds * streams * tokens:
        raise SystemExit(f"{found} tokens came, not {rounds * streams * tokens}: {replies[0][-300:]!r}")
    writes = sum(len(WRITE.findall(reply)) for reply in replies)
    return {
        "began": began,
        "ended": ended,
        "tokens": found,
        "tokens_per_second": found / (ended - began),
        "tokens_per_write": found / writes,
        "loop_us": 1e6 * (after.loop - before.loop) / found,
        "worker_us": 1e6 * (after.others - before.others) / found,
        "cpu_us": 1e6 * (after.loop - before.loop + after.others - before.others) / found,
    }


def load(
    engine: str, message: str, streams: int, tokens: int, rounds: int, runs: int, *, watched: bool, real_time: bool
) -> list[dict[str, float]]:
    """A server of its own, one run that warms it up, then `runs` runs."""
    server = Server(engine, streams, tokens, watched=watched)
    if real_time:
        for task in Path(f"/proc/{server.process.pid}/task").iterdir():
            os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(1))
    try:
        measure(server, message, streams, max(1, tokens // 20))
        found = [measure(server, message, streams, tokens, rounds) for _ in range(runs)]
    except BaseException:
        server.process.kill()
        server.process.wait()
        raise
    delays = server.stop()
    for run in found:
        began, ended = run.pop("began"), run.pop("ended")
        during = sorted(late for at, late in delays if began <= at <= ended)
        if not watched:
            continue
        run["delay_samples"] = len(during)
        run["delay_p50_ms"] = 1e3 * during[len(during) // 2]
        run["delay_p99_ms"] = 1e3 * during[int(0.99 * len(during))]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=6000, help="of each stream, flat out; paced, a 20th of them")
    parser.add_argument("--rounds", type=int, default=10, help="of a run, flat out; paced, one")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--real-time", action="store_true", help="real-time priority for the server")
    options = parser.parse_args()
    paced_message = json.dumps({"pieces": ["a"], "delay_ms": PACE_MS, "then": "length"})
    sizes = {"streams": options.streams, "runs": options.runs, "real_time": options.real_time}
    loads = {
        "flat out": load("uniform", "hello", tokens=options.tokens, rounds=options.rounds, watched=True, **sizes),
        "paced": load("scripted", paced_message, tokens=options.tokens // 20, rounds=1, watched=False, **sizes),
    }
    targets = {("flat out", "cpu_us"): TARGET_MICROSECONDS, ("flat out", "delay_p99_ms"): TARGET_MILLISECONDS}
    missed = 0
    print(f"{'load':<10}{'figure':<20}{'target':>10}{'median':>10}{'least':>10}{'most':>10}")
    for name, runs in loads.items():
        for figure in runs[0]:
            values, target = [run[figure] for run in runs], targets.get((name, figure))
            median = statistics.median(values)
            missed += target is not None and median > target
            shown = "" if target is None else f"{target:.0f}"
            print(f"{name:<10}{figure:<20}{shown:>10}{median:>10.2f}{min(values):>10.2f}{max(values):>10.2f}")
    if options.json:
        machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
        found = {"machine": machine, **sizes, **loads}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
