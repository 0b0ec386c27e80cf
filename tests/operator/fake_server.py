"""A stand-in for one pod's server: the admin port with its drain rules, and no model behind it."""

import asyncio
import json
import secrets
from typing import Any

from carousel_server.admin_state import (
    AdminState,
    CloseRequest,
    DrainRequest,
    DrainState,
    LimitsUpdate,
    PeersUpdate,
    RequestCounts,
    SessionCounts,
)
from carousel_server.limits import Limits


class FakeServer:
    """Listens on `ip`:`port` after `start`. A test sets what it holds; every call is in `calls`."""

    def __init__(self, ip: str, port: int, token: str, ordinal: int = 0) -> None:
        self.ip, self.port, self.token, self.ordinal = ip, port, token, ordinal
        self.boot_id = secrets.token_hex(4)
        self.phase: str = "serving"
        self.sessions = self.in_flight = self.running = self.queued = 0
        self.idle_seconds: float | None = 1000.0
        self.drain: DrainState | None = None
        self.limits, self.limits_generation = Limits(), 1
        self.peers = PeersUpdate(generation=0)
        self.calls: list[str] = []
        self.host_bytes = self.gpu_bytes = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.ip, self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._open:
            writer.transport.abort()

    @property
    def quiet(self) -> bool:
        if self.queued or self.running or self.in_flight:
            return False
        grace = self.drain.idle_grace_seconds if self.drain else 0.0
        return self.sessions == 0 or (self.idle_seconds or 0.0) >= grace

    def state(self) -> AdminState:
        phase = "closed" if self.drain and self.drain.closed else "draining" if self.drain else self.phase
        return AdminState(
            version="test",
            boot_id=self.boot_id,
            ordinal=self.ordinal,
            phase=phase,
            progress=1.0,
            uptime_seconds=1.0,
            sessions=SessionCounts(
                active=self.sessions,
                in_flight=self.in_flight,
                capacity=self.limits.sessions.count,
                newest_use_seconds=self.idle_seconds if self.sessions else None,
            ),
            requests=RequestCounts(queued=self.queued, running=self.running),
            reserved_bytes=0,
            drain=self.drain,
            limits=self.limits,
            limits_generation=self.limits_generation,
            peers_generation=self.peers.generation,
            plan_digest="",
            plan_host_bytes=self.host_bytes,
            plan_gpu_bytes=self.gpu_bytes,
        )

    def answer(self, verb: str, path: str, body: bytes) -> tuple[int, Any]:
        match verb, path:
            case "GET", "/admin/state":
                return 200, self.state().model_dump(by_alias=True, mode="json")
            case "POST", "/admin/drain":
                asked = DrainRequest.model_validate_json(body)
                self.drain = DrainState(
                    reason=asked.reason,
                    remaining_seconds=asked.remaining_seconds,
                    idle_grace_seconds=asked.idle_grace_seconds,
                    closed=bool(self.drain and self.drain.closed),
                )
            case "DELETE", "/admin/drain":
                self.drain = None
            case "POST", "/admin/drain/close":
                if self.drain is None or not (CloseRequest.model_validate_json(body).force or self.quiet):
                    return 409, {"error": "not quiet"}
                self.drain = self.drain.model_copy(update={"closed": True})
            case "PUT", "/admin/limits":
                update = LimitsUpdate.model_validate_json(body)
                if update.generation < self.limits_generation:
                    return 409, {"error": "older"}
                self.limits, self.limits_generation = update.limits, update.generation
            case "PUT", "/admin/peers":
                self.peers = PeersUpdate.model_validate_json(body)
            case _:
                return 404, {"error": path}
        return 200, {}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while line := await reader.readline():
                verb, path, _ = line.decode().split(" ", 2)
                headers = {}
                while (header := (await reader.readline()).decode().strip()) != "":
                    key, _, value = header.partition(":")
                    headers[key.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if headers.get("authorization") != f"Bearer {self.token}":
                    status, found = 401, {"error": "token"}
                else:
                    status, found = self.answer(verb, path, body)
                    if verb != "GET":
                        self.calls.append(f"{verb} {path} {status}")
                content = json.dumps(found).encode()
                head = (
                    f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
                )
                writer.write(head.encode() + content)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()
