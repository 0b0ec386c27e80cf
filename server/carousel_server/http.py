"""uvicorn as this server uses it: two ports in one event loop, own signals, own log, and an end that always comes."""

import asyncio
import contextlib
import ctypes
import functools
import socket
import struct
from collections.abc import Generator
from typing import Any

import uvicorn

from carousel_server.connection import Connection, WireLimits

KEEP_ALIVE_SECONDS = 75  # longer than the idle time of common client pools: the client closes first
GRACEFUL_SECONDS = 5.0

SO_ATTACH_FILTER = 26
# Over a TCP header: drop what opens a connection (SYN without ACK), take all else.
NO_OPENING = (
    (0x30, 0, 0, 13),  # load the flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


class Port(uvicorn.Server):
    """One listening port. Signals are the process's business, not a port's."""

    def __init__(self, app: Any, sock: socket.socket, limits: WireLimits) -> None:
        self.sock = sock
        super().__init__(
            uvicorn.Config(
                app,
                http=functools.partial(Connection, limits=limits),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                interface="asgi3",
                loop="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(GRACEFUL_SECONDS),
                backlog=1024,
            )
        )

    @property
    def number(self) -> int:
        """The bound port."""
        return int(self.sock.getsockname()[1])

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def run_until_told(self) -> None:
        """Serve until `stop`; then finish what is written, at most GRACEFUL_SECONDS."""
        await self.serve(sockets=[self.sock])

    def close_to_new(self) -> None:
        """No connection opens any more; those that have opened are still accepted.

        Closing the listening socket alone would reset the ones that wait in its queue, whose clients may have sent.
        A client that is turned away tries again after a second, and is refused by then. Without Linux: nothing.
        """
        program = b"".join(struct.pack("HBBI", *line) for line in NO_OPENING)
        held = ctypes.create_string_buffer(program)
        with contextlib.suppress(OSError):
            pointer = struct.pack("HP", len(NO_OPENING), ctypes.addressof(held))
            self.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, pointer)

    @property
    def expecting(self) -> bool:
        """Whether a connection is open by which a first request, or the rest of a head, is still to come."""
        return any(c.expecting for c in self.server_state.connections if isinstance(c, Connection))

    def stop(self) -> None:
        """End `run_until_told`."""
        self.should_exit = True

    def drop_everything(self) -> None:
        """End without waiting for anybody."""
        self.should_exit = self.force_exit = True
        for connection in list(self.server_state.connections):
            with contextlib.suppress(AttributeError):
                connection.transport.abort()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises OSError with the address in its text."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
    return sock


async def serve_ports(*ports: Port) -> None:
    """All ports until each has stopped."""
    await asyncio.gather(*(port.run_until_told() for port in ports))
