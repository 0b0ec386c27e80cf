"""Whole servers for tests: real sockets and threads, a scripted engine, in this process. Started in milliseconds."""

import asyncio
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import uvloop
from carousel_server import server as server_module
from carousel_server.config import load_config
from carousel_server.loader import Loaded, Source, blueprint, load_model
from carousel_server.server import Server, Setup

TOKEN = "admin-secret"


class Clients:
    """HTTP clients of a started server's two ports."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.port, self.admin_port = ports["port"], ports["admin_port"]
        self.url, self.admin_url = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.admin_port}"
        self.http = httpx.Client(base_url=self.url, timeout=20)
        self.probe = httpx.Client(base_url=self.admin_url, timeout=20)  # the admin port without its token
        self.admin = httpx.Client(base_url=self.admin_url, timeout=20, headers={"authorization": f"Bearer {TOKEN}"})

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        self.http.close()
        self.probe.close()
        self.admin.close()

    def state(self) -> dict[str, Any]:
        return dict(self.admin.get("/admin/state").raise_for_status().json())

    def session(self, **body: Any) -> str:
        reply = self.http.post("/v1/sessions", json=body)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def chat(self, text: str | dict[str, Any] = "hello", **fields: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=chat_body(text, **fields))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def idle(self, seconds: float = 5.0) -> dict[str, Any]:
        """Wait until nothing is held, and prove it: no request, no reserved byte, no integrity error."""
        state = wait_for(
            lambda: not any((s := self.state())["requests"].values()) and s["reservedBytes"] == 0 and s,
            seconds,
        )
        assert "carousel_integrity_errors_total 0.0" in self.http.get("/metrics").text
        return dict(state)


class Running(Clients):
    """A server in this process."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, ports: dict[str, int]) -> None:
        super().__init__(ports)
        self.server = server
        self.loop = loop

    @property
    def boot_id(self) -> str:
        return self.server.stage.identity.boot_id

    def idle(self, seconds: float = 5.0) -> dict[str, Any]:
        """Nor an open turn."""
        state = super().idle(seconds)
        wait_for(lambda: not self.server.routes.turns and not self.server.routes.hop.passing, seconds)
        return state


def wait_for(look: Callable[[], Any], seconds: float = 5.0) -> Any:
    """The first true value of `look`."""
    deadline = time.monotonic() + seconds
    while True:
        value = look()
        if value:
            return value
        assert time.monotonic() < deadline, f"still {value!r} after {seconds} s"
        time.sleep(0.02)


def script(*pieces: str | bytes, **more: Any) -> dict[str, Any]:
    """A user message that is answered with these pieces, each one token."""
    return {"pieces": [{"hex": p.hex()} if isinstance(p, bytes) else p for p in pieces], **more}


def user(text: str | dict[str, Any]) -> dict[str, Any]:
    """A user message; a script becomes its JSON."""
    return {"role": "user", "content": json.dumps(text) if isinstance(text, dict) else text}


def chat_body(text: str | dict[str, Any] = "hello", **fields: Any) -> dict[str, Any]:
    """A chat body with one user message."""
    return {"model": "chat", "messages": [user(text)], **fields}


def begin(response: httpx.Response) -> Iterator[str]:
    """The lines of a stream after its first one, which has come. Keep it: without it the stream is closed."""
    lines = response.iter_lines()
    next(lines)
    return lines


def lines_of(response: httpx.Response) -> list[str]:
    """A stream's lines that are not empty."""
    return [line for line in response.text.split("\n") if line]


def events_of(text: str) -> list[dict[str, Any]]:
    """The JSON events of a finished stream, which must end with [DONE]."""
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert data, text
    assert data[-1] == "[DONE]", text[-300:]
    return [json.loads(item) for item in data[:-1]]


def text_of(events: list[dict[str, Any]]) -> str:
    """The text of a chat stream."""
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e.get("choices"))


@contextmanager
def running(
    *,
    engine: str = "scripted",
    model: str = "embedded",
    settings: dict[str, Any] | None = None,
    api_keys: Path | None = None,
    peers: Path | None = None,
    ordinal: int = 0,
    token: str | None = TOKEN,
    loading: threading.Event | None = None,
    load: Callable[..., Loaded] = load_model,
    access_log: bool = False,
) -> Iterator[Running]:
    """A server; `settings` by dotted name, such as {"limits.activeRequests": 1}. `loading` holds its load back; `load`
    is what it loads with."""
    with tempfile.TemporaryDirectory() as folder, patch.object(server_module, "load_model", load):
        secret = Path(folder) / "token"
        if token is not None:
            secret.write_text(token)
        config = load_config(flags={name: str(value) for name, value in (settings or {}).items()})
        source = Source(model, engine, config.limits, config.engine)  # type: ignore[arg-type]
        setup = Setup(
            source=source,
            served_name="chat",
            host="127.0.0.1",
            port=0,
            admin_port=0,
            ordinal=ordinal,
            generation=0,
            api_keys=api_keys,
            admin_token=secret,
            peers=peers,
            access_log=access_log,
            version="test",
        )
        server = Server(setup, blueprint(source))
        if loading is not None:
            _hold_back(server, loading)
        ports: dict[str, int] = {}
        started = threading.Event()
        loop = uvloop.new_event_loop()
        codes: list[int] = []

        def announce(line: str) -> None:
            ports.update(json.loads(line))
            started.set()

        def run() -> None:
            asyncio.set_event_loop(loop)
            codes.append(loop.run_until_complete(server.run(announce, signals=False)))
            loop.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert started.wait(20), "the server did not start"
        found = Running(server, loop, ports)
        try:
            if loading is None:
                wait_for(lambda: found.http.get("/health").status_code == 200, 20)
            yield found
        finally:
            if thread.is_alive():
                loop.call_soon_threadsafe(server.end)
            thread.join(30)
            found.close()
        assert not thread.is_alive(), "the server did not end"


def _hold_back(server: Server, loading: threading.Event) -> None:
    """The load waits for the event."""
    load = server._load

    async def later() -> None:
        await asyncio.get_running_loop().run_in_executor(None, loading.wait)
        await load()

    server._load = later  # type: ignore[method-assign]
