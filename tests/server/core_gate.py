"""Holds a running server at a chosen point, so that a test can act exactly there. Real sockets, real worker thread."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.server.http_kit import Running

WAIT = 60.0  # a loaded machine is slow; nothing here waits for long when all is well


class Hold:
    """Someone was stopped here: `reached` says so, `go` lets them on."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def wait(self) -> None:
        assert self.reached.wait(WAIT), "nobody came to the held point"

    def stop_here(self) -> None:
        self.reached.set()
        assert self.go.wait(WAIT), "held for too long"


@contextmanager
def hold(owner: object, method: str, *, after: int = 0) -> Iterator[Hold]:
    """Stop the call number `after` of a method of this object before it begins."""
    original, found, calls = getattr(owner, method), Hold(), iter(range(1_000_000))

    def held(*arguments, **named):
        if next(calls) == after:
            found.stop_here()
        return original(*arguments, **named)

    setattr(owner, method, held)
    try:
        yield found
    finally:
        found.go.set()
        setattr(owner, method, original)


@contextmanager
def around(owner: object, method: str, *, before=None, behind=None) -> Iterator[None]:
    """Do something directly before or behind every call of a method."""
    original = getattr(owner, method)

    def wrapped(*arguments, **named):
        if before is not None:
            before()
        result = original(*arguments, **named)
        if behind is not None:
            behind()
        return result

    setattr(owner, method, wrapped)
    try:
        yield
    finally:
        setattr(owner, method, original)


class RawClient:
    """One chat request on its own socket, so that it can be half-closed or dropped."""

    def __init__(self, server: Running, body: dict) -> None:
        self.socket = server.connect()
        self.socket.settimeout(WAIT)
        content = json.dumps(body).encode()
        head = ["POST /v1/chat/completions HTTP/1.1", "host: x", "connection: close", f"content-length: {len(content)}"]
        self.socket.sendall("\r\n".join([*head, "", ""]).encode() + content)

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def drop(self) -> None:
        """Gone at once, with a reset: an orderly end of sending alone would be a half-close."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def read(self) -> tuple[int, str]:
        """Status and body of the final response; interim ones, which keep a waiting client warm, are skipped."""
        data = b""
        while piece := self.socket.recv(65536):
            data += piece
        self.socket.close()
        head, _, body = data.partition(b"\r\n\r\n")
        while head.split()[1].startswith(b"1"):
            head, _, body = body.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode(errors="replace")
