"""A server process that a test can stop at a chosen point, to act exactly there. See core_gated_server.py."""

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.server.http_kit import TOKEN, Clients, wait_for

WAIT = 60.0  # a loaded machine is slow; nothing here waits for long when all is well


class Gate:
    """The test's end of the control socket."""

    def __init__(self, control: socket.socket) -> None:
        control.settimeout(WAIT)
        self._lines = control.makefile("rw")

    def ask(self, do: str, **fields: Any) -> Any:
        """One order and its answer."""
        print(json.dumps({"do": do, **fields}), file=self._lines, flush=True)
        return json.loads(self._lines.readline())

    @contextmanager
    def hold(self, point: str, *, after: int = 0) -> Iterator[None]:
        """Stop the call number `after` of this point; at the end of the block it goes on."""
        self.ask("hold", point=point, after=after)
        try:
            yield
        finally:
            self.ask("go")

    def wait(self) -> None:
        """Until someone is stopped."""
        assert self.ask("wait"), "nobody came to the held point"


class GatedServer(Clients):
    """A child that serves the embedded model."""

    def __init__(self, ports: dict[str, int], gate: Gate, pid: int, log: Path) -> None:
        super().__init__(ports)
        self.gate, self.pid, self.log = gate, pid, log

    def turns_of(self, session: str) -> int:
        return int(self.http.get(f"/v1/sessions/{session}").json()["turns"])

    def metric(self, sample: str) -> float:
        """The value of one sample of /metrics; 0 if it was never counted."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{sample} "))


@contextmanager
def gated(folder: Path, *flags: str, code: int = 0, wait: float = WAIT) -> Iterator[GatedServer]:
    """Start within `wait` seconds, and end with SIGTERM: an idle server leaves with exit code 0. With another `code` it
    has to end by itself, and with that."""
    (folder / "token").write_text(TOKEN)
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.server.core_gated_server", str(theirs.fileno()), "serve"]
    command += ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--admin-token", str(folder / "token")]
    with ours, (folder / "log").open("w") as log:
        child = subprocess.Popen(
            [*command, "--threads", "1", *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        try:
            assert child.stdout is not None
            server = GatedServer(json.loads(child.stdout.readline()), Gate(ours), child.pid, folder / "log")
            try:
                wait_for(lambda: server.http.get("/health").status_code == 200, wait)
            except httpx.ConnectError:
                raise AssertionError(f"it ended with {child.wait(WAIT)}: {server.log.read_text()[-2000:]}") from None
            yield server
            server.close()
            if code == 0:
                child.terminate()
            assert child.wait(WAIT) == code
        finally:
            child.kill()
            child.wait()


class RawClient:
    """One chat request on its own socket, so that it can be half-closed or dropped, or read slowly or not at all."""

    def __init__(self, server: Clients, body: dict[str, Any]) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(WAIT)
        self.socket.connect(("127.0.0.1", server.port))
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
