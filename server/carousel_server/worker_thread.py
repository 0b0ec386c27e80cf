"""The thread around the worker: loads the engine, turns while there is work, sweeps and checks when there is none."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from carousel_server.core import Core
from carousel_server.engine.protocol import Engine, EngineError
from carousel_server.integrity import problems
from carousel_server.worker import Worker

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0


@runtime_checkable
class Idling(Protocol):
    """An engine that works beside the calls on it, too."""

    def idle(self) -> None:
        """There is no call to make now. EngineError, fatal, when what goes on beside them has failed."""


class WorkerThread:
    """`load` makes the engine on this thread, which then is the only one that touches it."""

    def __init__(
        self,
        core: Core,
        load: Callable[[], Engine],
        make: Callable[[Engine], Worker],
        on_fatal: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine: Future[Engine] = Future()
        self._core = core
        self._load = load
        self._make = make
        self._on_fatal = on_fatal
        self._clock = clock
        self._work = threading.Event()
        self._stopping = False
        self._swept = 0.0
        self._checked = True
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def start(self) -> Engine:
        """Start, and wait for the engine. Raises what loading it raised."""
        self._thread.start()
        return self.engine.result()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def notify(self) -> None:
        """There may be something to do; from any thread."""
        self._work.set()

    def stop(self, timeout: float) -> None:
        """End after the running step."""
        self._stopping = True
        self._work.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            engine = self._load()
            worker = self._make(engine)
        except BaseException as error:
            self.engine.set_exception(error)
            return
        self.engine.set_result(engine)
        try:
            idle = engine.idle if isinstance(engine, Idling) else lambda: None
            while not self._stopping:
                self._work.clear()
                while not self._stopping and worker.run_once():
                    self._checked = False
                    self._sweep()
                self._idle(worker, engine)
                idle()
                self._work.wait(SWEEP_SECONDS)
        except EngineError as error:
            log.critical("the engine cannot go on: %s", error)
            worker.abandon(f"the engine cannot go on: {error}")
            self._on_fatal(error)
        except Exception as error:
            log.critical("the worker cannot go on", exc_info=error)
            worker.abandon("the server failed inside; its log has the cause")
            self._on_fatal(error)

    def _sweep(self) -> None:
        now = self._clock()
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            with self._core.lock:
                self._core.sweep(now)

    def _idle(self, worker: Worker, engine: Engine) -> None:
        self._sweep()
        self._core.dropped.clear()
        with self._core.lock:
            if self._checked or worker.jobs or len(self._core.registry):
                return
            self._checked = True
            found = problems(self._core, engine)
            self._core.stats.add("integrity_errors", by=len(found))
        for problem in found:
            log.error("idle integrity check: %s", problem)
