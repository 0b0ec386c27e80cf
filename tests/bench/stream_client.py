"""A client in a process of its own that reads streams and tells when their tokens came.

    python -m tests.bench.stream_client < orders

Each line is {"port": P, "bodies": [chat bodies]}: all of them at once. The answer is a line with a list: for each
stream the seconds at which its request was sent, at which it ended and at which text came, and how many characters.
"""

import json
import re
import selectors
import socket
import subprocess
import sys
import time
from typing import Any

CONTENT = re.compile(rb'"content":"((?:[^"\\]|\\.)*)"')
WAIT = 300.0


class Stream:
    """One chat request on its own socket, sent at once."""

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT)
        content = json.dumps({**body, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(content)}"
        self.began = time.monotonic()
        self.socket.sendall(head.encode() + b"\r\n\r\n" + content)
        self.data = bytearray()
        self.seen, self.ended = 0, 0.0
        self.times: list[float] = []
        self.counts: list[int] = []

    def take(self, piece: bytes) -> None:
        """Count the text of every frame that is complete by now."""
        self.data += piece
        end = self.data.rfind(b"\n") + 1
        found = sum(len(text) for text in CONTENT.findall(self.data, self.seen, end))
        self.seen = max(self.seen, end)
        if found:
            self.times.append(time.monotonic())
            self.counts.append(found)


def read(port: int, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All streams, to their ends. SystemExit with what came when one is no whole stream."""
    selector, streams = selectors.DefaultSelector(), [Stream(port, body) for body in bodies]
    for stream in streams:
        selector.register(stream.socket, selectors.EVENT_READ, stream)
    while selector.get_map():
        ready = selector.select(timeout=WAIT)
        if not ready:
            raise SystemExit(f"no stream brought anything for {WAIT:.0f} s")
        for key, _ in ready:
            stream = key.data
            if piece := stream.socket.recv(1 << 20):
                stream.take(piece)
            else:
                stream.ended = time.monotonic()
                selector.unregister(stream.socket)
                stream.socket.close()
    for stream in streams:
        if b"[DONE]" not in stream.data or b'"error"' in stream.data:
            raise SystemExit(f"no whole stream: {bytes(stream.data[-500:])!r}")
    return [{"began": s.began, "ended": s.ended, "times": s.times, "counts": s.counts} for s in streams]


class Client:
    """The bench's end of such a process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.bench.stream_client"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self, port: int, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What `read` found there."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(json.dumps({"port": port, "bodies": bodies}), file=self._child.stdin, flush=True)
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"the client ended with {self._child.wait()}")
        return list(json.loads(line))

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(30)


if __name__ == "__main__":
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(read(order["port"], order["bodies"])), flush=True)
