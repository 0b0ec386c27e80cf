"""Builds everything and starts it: two ports at once, the model in the background, and an end in good order."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from carousel_server.admin import Admin
from carousel_server.admin_state import DrainRequest, PeersUpdate
from carousel_server.app import admin_app, client_app
from carousel_server.auth import AdminToken, ApiKeys
from carousel_server.build import build_service
from carousel_server.connection import WireLimits
from carousel_server.hop import Hop
from carousel_server.http import Port, listen
from carousel_server.identity import Identity
from carousel_server.loader import INVALID, MISSING, Blueprint, Source, StartError, blueprint, device_code, load_model
from carousel_server.local_service import LocalService
from carousel_server.peers import Forwarder
from carousel_server.routes import Routes
from carousel_server.stage import ModelCard, Stage

log = logging.getLogger(__name__)
T = TypeVar("T")
FAULT = 1  # exit code of a fault in the server itself
SHUTDOWN_SECONDS = 10.0  # of SIGTERM's drain: running requests may end by themselves
FRAME_SECONDS = 3.0  # for the last frames of what did not
SETTLE_SECONDS, OPENING_SECONDS = 0.1, 1.0  # for connections that opened just now: accepted; their first request


@dataclass(frozen=True)
class Setup:
    """All that a server is started with."""

    source: Source
    served_name: str
    host: str
    port: int
    admin_port: int
    ordinal: int
    generation: int
    api_keys: Path | None
    admin_token: Path
    peers: Path | None
    access_log: bool
    version: str


class Server:
    """One process. `run` ends with an exit code."""

    def __init__(self, setup: Setup, sketch: Blueprint) -> None:
        self.setup = setup
        self.sketch = sketch
        self.stage = Stage(Identity(setup.ordinal, os.urandom), sketch.plan, setup.version)
        self.service: LocalService | None = None
        self._code = 0
        self.why = ""  # of a code other than 0
        self._signals = 0
        limits, engine = sketch.plan.limits, sketch.plan.engine
        self.wire = WireLimits(engine.header_timeout, 64 * 1024, limits.socket_timeout, limits.request_bytes)
        self.token = AdminToken(setup.admin_token)
        self.keys = ApiKeys(setup.api_keys)

    async def run(self, announce: Callable[[str], None], *, signals: bool = True) -> int:
        """Listen, load, serve until a signal, `end` or a fatal error. Raises StartError 64 when a port is taken."""
        setup = self.setup
        try:
            sockets = listen(setup.host, setup.port), listen(setup.host, setup.admin_port)
        except OSError as error:
            raise StartError(INVALID, str(error)) from None
        self._ending = asyncio.Event()
        forwarder = Forwarder(self.stage.identity.boot_id)
        hop = Hop(forwarder, self.token)
        self.routes = Routes(self.stage, self.keys, self.token, self.wire, hop)
        admin = Admin(self.stage, self.token, self.wire, hop)
        clients = client_app(self.routes, self.stage, keys_required=self.keys.required, log=setup.access_log)
        self.ports = (Port(clients, sockets[0], self.wire), Port(admin_app(admin), sockets[1], WireLimits()))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT) if signals else ():
            loop.add_signal_handler(number, self._on_signal)
        serving = [asyncio.create_task(port.run_until_told()) for port in self.ports]
        announce(json.dumps({"event": "listening", "port": self.ports[0].number, "admin_port": self.ports[1].number}))
        loading = asyncio.create_task(self._load())
        await self._ending.wait()
        loading.cancel()
        written = await self._end()
        for port in self.ports:
            if written:
                port.stop()
            else:
                port.drop_everything()
        await asyncio.gather(*serving)
        await forwarder.close()
        if self.service is not None:
            await asyncio.to_thread(self.service.stop)
        return self._code

    def end(self) -> None:
        """As the first SIGTERM; on the loop's thread."""
        self._ending.set()

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()

        def progress(share: float, message: str) -> None:
            loop.call_soon_threadsafe(self._progress, share, message)

        def fatal(error: Exception) -> None:
            loop.call_soon_threadsafe(self._fatal, error)

        try:
            loaded = await in_daemon_thread(lambda: load_model(self.sketch, progress))
            service = await in_daemon_thread(
                lambda: build_service(
                    loaded.make_engine,
                    loaded.vocabulary,
                    plan=self.sketch.plan,
                    replan=self.sketch.replan,
                    identity=self.stage.identity,
                    version=self.setup.version,
                    on_fatal=fatal,
                )
            )
        except StartError as error:
            self._fail(error.code, str(error))
            return
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._fail(device_code(error) or MISSING, f"the model cannot be loaded: {error}")
            log.debug("loading failed", exc_info=error)
            return
        service.limits_generation = self.setup.generation
        if self.setup.peers is not None:
            self._read_peers(service, self.setup.peers)
        self.service = service
        stage, context = self.stage, self.sketch.plan.engine.context_tokens or 0
        stage.preparer, stage.defaults = loaded.preparer, loaded.defaults
        stage.card = ModelCard(self.setup.served_name, context, int(time.time()), self.sketch.shape.vocab)
        stage.core, stage.progress, stage.message = service, 1.0, ""
        log.info("serving %s with %d tokens of context", self.setup.served_name, context)

    def _read_peers(self, service: LocalService, path: Path) -> None:
        try:
            service.set_peers(PeersUpdate.model_validate_json(path.read_bytes()))
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            log.warning("%s is not read, the operator will send the peers: %s", path, error)

    def _progress(self, share: float, message: str) -> None:
        self.stage.progress, self.stage.message = share, message
        log.info("loading %.0f%%: %s", share * 100, message)

    def _fatal(self, error: Exception) -> None:
        """Nothing can be generated any more: end at once; kubelet starts a fresh process."""
        code = device_code(error)
        self._fail(code or FAULT, f"{'the device is lost' if code else 'the worker cannot go on'}: {error}")

    def _fail(self, code: int, message: str) -> None:
        log.critical("%s (exit code %d)", message, code)
        self._code, self.why = code, message
        self._ending.set()

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            log.info("told to end: draining for at most %.0f s", SHUTDOWN_SECONDS)
            self.end()
            return
        print("carousel-server: told to end twice, ending at once", file=sys.stderr, flush=True)
        os._exit(self._code)

    async def _end(self) -> bool:
        """Let running requests end, then give each of the others one last event. False: some client reads nothing."""
        service, self.stage.stopping = self.service, True
        if service is not None and self._code == 0:
            service.drain(DrainRequest(reason="restart", remaining_seconds=SHUTDOWN_SECONDS, idle_grace_seconds=0))
            await until(lambda: not self._busy(service), SHUTDOWN_SECONDS)
            service.close_drain(force=True)
        for turn in list(self.routes.turns):
            turn.cancel("shutdown")
        self.routes.hop.shut_down()
        written = until(lambda: not (self.routes.turns or self.routes.hop.passing), FRAME_SECONDS)
        return (await asyncio.gather(written, self._answer_the_last()))[0]

    async def _answer_the_last(self) -> None:
        """Whoever has got a connection gets an answer by it: Services send to a pod until it is gone when they have no
        other, and a connection that is closed unread is reset."""
        clients = self.ports[0]
        clients.close_to_new()
        await asyncio.sleep(SETTLE_SECONDS)
        await until(lambda: not clients.expecting, OPENING_SECONDS)

    def _busy(self, service: LocalService) -> bool:
        counts = service.state().requests
        return bool(counts.queued + counts.running or self.routes.hop.passing)


async def until(done: Callable[[], bool], seconds: float) -> bool:
    """Return when `done`, looked at every 20 ms, or False when the time is over."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while not done():
        if clock() >= deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """`work` on a thread that does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(set_it: Callable[..., None], value: object) -> None:
        if not done.done():
            set_it(value)

    def run() -> None:
        try:
            outcome: tuple[Callable[..., None], object] = (done.set_result, work())
        except BaseException as error:
            outcome = (done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(finish, *outcome)

    threading.Thread(target=run, name="loader", daemon=True).start()
    return await done


def serve(setup: Setup) -> int:
    """Run a server in this process. Raises StartError for what is wrong before it listens."""
    import uvloop

    from carousel_server.access_log import LogThread

    sys.setswitchinterval(0.0005)  # Python's 5 ms is a long time for the loop beside a busy worker
    logs = LogThread()
    logs.start()
    try:
        server = Server(setup, blueprint(setup.source))
        gc.freeze()  # what is imported stays: a full collection would walk it for 0.15 s, in which nothing else runs
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(server.run(lambda line: print(line, flush=True)))
    finally:
        logs.stop()
    if server.why:  # the last line: it is what Kubernetes tells of a container that has ended
        print(f"carousel-server: {server.why}", file=sys.stderr, flush=True)
    return code
