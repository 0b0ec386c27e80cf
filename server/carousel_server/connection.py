"""One client's TCP connection: time limits on its head, half-closed clients, readers that stand still.

A thin layer over uvicorn's httptools protocol, which has none of these. Knows bytes and time, no request's meaning.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from carousel_server.failure import Failure

Send = Callable[[dict[str, Any]], Awaitable[None]]
EXTENSION = "carousel.connection"
SEND_BUFFER_BYTES = 256 * 1024  # the kernel would take up to 4 MiB of a reply that nobody reads
PROBE_SECONDS = (0.2, 0.2, 0.5, 1.0)  # then every 2 s
INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
EMPTY_COMMENT = b"3\r\n:\n\n\r\n"  # one chunk of a stream
TCP_CLOSED = 7  # tcpi_state after the peer's reset


@dataclass
class WireLimits:
    """Limits of every connection of a port; `socket_seconds` and `body_bytes` may change while the server runs."""

    head_seconds: float = 15.0
    head_bytes: int = 64 * 1024
    socket_seconds: float = 30.0
    body_bytes: int = 4 * 1024 * 1024


class Stalled(Exception):
    """The client read nothing for socketTimeout."""


class Connection(HttpToolsProtocol):
    """See the module. `limits` is shared by all connections of a port."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: WireLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limits = limits
        self.whole_events = False  # the reply is written in whole server-sent events
        self._head_bytes = 0
        self._head_open = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    # The head of a request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=64 * 1024, low=16 * 1024)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            self._start_head_timer()
        if self._head_open:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_open and self._head_bytes > self.limits.head_bytes and not self.transport.is_closing():
            self._refuse(
                Failure(
                    "head_too_large", f"The request head is larger than {self.limits.head_bytes} bytes; shorten it."
                )
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_open = True
        self.whole_events = False
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        self._head_open = False
        self._head_bytes = 0
        self._cancel("_head_timer")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_open = True

    @property
    def expecting(self) -> bool:
        """No request came by it yet, or the head of the next one is not whole."""
        return not self._busy and (self.cycle is None or self._head_bytes > 0)

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_seconds, self._head_timed_out)

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or self._busy:
            return
        self._refuse(
            Failure(
                "request_timeout",
                f"No complete request head came within {self.limits.head_seconds:g} s; send it again.",
            )
        )

    def send_400_response(self, msg: str) -> None:
        self._refuse(Failure("invalid_request", "This is not a valid HTTP/1.1 request."))

    def _refuse(self, failure: Failure) -> None:
        if self._busy:  # a reply is being written: nothing may be put between its bytes
            self.transport.close()
            return
        content = to_json(failure.body())
        self.transport.write(
            STATUS_LINE[failure.status]
            + b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
            + str(len(content)).encode()
            + b"\r\n\r\n"
            + content
        )
        self.transport.close()
        self._linger()

    # The end of a connection

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A client that stopped sending may still read: keep the transport while a whole request is answered."""
        if not self._busy or self.cycle.more_body:
            return None
        self.cycle.keep_alive = False
        self._probe(0)
        return True

    def _probe(self, count: int) -> None:
        """Tell a half-closed client from one that is gone: only the latter's kernel answers data with a reset."""
        if self.transport.is_closing() or not self._busy:
            return
        if self._was_reset():
            self.transport.abort()
            return
        if count and not self.flow.write_paused:
            self.transport.write(self._harmless())
        delay = PROBE_SECONDS[count] if count < len(PROBE_SECONDS) else 2.0
        self._probe_timer = self.loop.call_later(delay, self._probe, count + 1)

    def _harmless(self) -> bytes:
        """Bytes that mean nothing to a client that waits for this reply."""
        if not self.cycle.response_started:
            return INTERIM if self.scope["http_version"] == "1.1" else b""
        return EMPTY_COMMENT if self.whole_events and self.cycle.chunked_encoding else b""

    def _was_reset(self) -> bool:
        sock = self.transport.get_extra_info("socket")
        return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSED)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._linger()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._linger()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._linger()

    def _linger(self) -> None:
        """A closing transport waits for the client to read what is left: not for ever."""
        if self._linger_timer is None:
            self._linger_timer = self.loop.call_later(self.limits.socket_seconds, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        for name in ("_head_timer", "_probe_timer", "_linger_timer"):
            self._cancel(name)
        super().connection_lost(exc)

    def _cancel(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)

    # Readers that stand still

    def unsent_bytes(self) -> int:
        """Bytes of replies that the client has not acknowledged, in this process and in the kernel."""
        unsent = self.transport.get_write_buffer_size()
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            unsent += struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
        return unsent


def connection_of(scope: Any) -> Connection | None:
    """The connection that a request came by."""
    found = (scope.get("extensions") or {}).get(EXTENSION)
    return found if isinstance(found, Connection) else None


async def send_or_stall(scope: Any, send: Send, message: dict[str, Any]) -> None:
    """`send`, waiting at most socketTimeout without progress of the reader. Raises Stalled, and drops the client."""
    connection = connection_of(scope)
    if connection is None or not connection.flow.write_paused:
        await send(message)
        return
    task = asyncio.ensure_future(send(message))
    try:
        left, waited = connection.unsent_bytes(), 0.0
        while True:
            limit = connection.limits.socket_seconds
            slice_seconds = min(1.0, limit / 4)
            done, _ = await asyncio.wait({task}, timeout=slice_seconds)
            if done:
                task.result()
                return
            unsent = connection.unsent_bytes()
            waited = 0.0 if unsent < left else waited + slice_seconds
            left = unsent
            if waited >= limit:
                connection.transport.abort()
                raise Stalled
    finally:
        if not task.done():
            task.cancel()
