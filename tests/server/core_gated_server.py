"""A `carousel-server` that can be stopped between its steps: the real process, ports, worker and model, with gates.

    python -m tests.server.core_gated_server FD serve ...

FD is a connected socket. Each line on it is a JSON object, answered by one line: `hold` a point (its call number
`after` stops there), `wait` until someone is stopped, `go` on, `onward` to the point's next call, `fail` (the point's
next call raises EngineError), `free_slots`. Points are the engine's methods, `prepare`, `completing` (the writer has
the end of a turn and has not claimed it) and `claimed` (it has, and has written nothing of the end). With the GPU
engine also the orders of device_orders.py.
"""

import asyncio
import json
import socket
import sys
import threading
from dataclasses import replace
from typing import Any

from carousel_server import response, server
from carousel_server.__main__ import main
from carousel_server.engine.protocol import EngineError
from carousel_server.local_turn import LocalTurn
from carousel_server.turn import Completion

ENGINE_POINTS = ("create", "adopt", "prefill", "step", "suspend")
ON_A_DEVICE = ("always_draft", "fault", "memory")
WAIT = 60.0


class Gates:
    """At most one point is held at a time, and one is to fail."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._point, self._left = "", 0
        self._failing = ""
        self._reached, self._opened = threading.Event(), threading.Event()

    def hold(self, point: str, after: int) -> None:
        with self._lock:
            self._point, self._left = point, after
            self._reached.clear()
            self._opened.clear()

    def wait(self) -> bool:
        return self._reached.wait(WAIT)

    def onward(self) -> None:
        """Let go on who is stopped, and stop the next one who comes to the same point."""
        with self._lock:
            self._left = 0
            self._reached.clear()
            self._opened.set()  # wakes who waits now
            self._opened.clear()

    def go(self) -> None:
        with self._lock:
            self._point = ""
            self._opened.set()

    def fail(self, point: str) -> None:
        self._failing = point

    def passing(self, point: str) -> None:
        """Called at a point by who comes there; returns when they may go on."""
        if self._failing == point:
            self._failing = ""
            raise EngineError(f"made to fail in {point}")
        if self._is_held(point):
            self._stop()

    async def passing_on_the_loop(self, point: str) -> None:
        """As `passing`, while the loop serves everybody else."""
        if self._is_held(point):
            await asyncio.to_thread(self._stop)

    def _is_held(self, point: str) -> bool:
        with self._lock:
            if point != self._point:
                return False
            self._left -= 1
            return self._left == -1

    def _stop(self) -> None:
        self._reached.set()
        if not self._opened.wait(WAIT):
            raise TimeoutError("held for too long")


def put_before(gates: Gates, owner: Any, method: str) -> None:
    """A gate before a method of this object."""
    original = getattr(owner, method)

    def gated(*arguments: Any, **named: Any) -> Any:
        gates.passing(method)
        return original(*arguments, **named)

    setattr(owner, method, gated)


def install(gates: Gates, engines: list[Any]) -> None:
    """Put every gate in place; the engine is added to `engines` once it is loaded."""
    load, events, claim, send = server.load_model, LocalTurn.events, LocalTurn.claim, response.send_or_stall
    claimed: set[Any] = set()  # the tasks of the writers that have claimed

    def gated_load(*arguments: Any) -> Any:
        loaded = load(*arguments)
        put_before(gates, loaded.preparer, "prepare")

        def make_engine() -> Any:
            engine = loaded.make_engine()
            for method in ENGINE_POINTS:
                put_before(gates, engine, method)
            engines.append(engine)
            return engine

        return replace(loaded, make_engine=make_engine)

    async def gated_events(turn: LocalTurn, seconds: float | None = None) -> Any:
        found = await events(turn, seconds)
        if found and isinstance(found[-1], Completion):
            await gates.passing_on_the_loop("completing")
        return found

    def noted_claim(turn: LocalTurn, completion: Completion) -> bool:
        decided = claim(turn, completion)
        if decided:
            claimed.add(asyncio.current_task())
        return decided

    async def gated_send(*arguments: Any) -> None:
        if (task := asyncio.current_task()) in claimed:
            claimed.discard(task)
            await gates.passing_on_the_loop("claimed")
        await send(*arguments)

    server.load_model, LocalTurn.events, LocalTurn.claim = gated_load, gated_events, noted_claim  # type: ignore[method-assign]
    response.send_or_stall = gated_send


def obey(control: socket.socket, gates: Gates, engines: list[Any]) -> None:
    """Answer the test until it hangs up."""
    with control, control.makefile("rw") as lines:
        for line in lines:
            order = json.loads(line)
            do = order.pop("do")
            if do in ON_A_DEVICE:
                from tests.server import device_orders

                answer = getattr(device_orders, do)(engines[0], **order)
            else:
                answer = engines[0].free_slots() if do == "free_slots" else getattr(gates, do)(**order)
            print(json.dumps(answer), file=lines, flush=True)


if __name__ == "__main__":
    points, made = Gates(), []
    install(points, made)
    threading.Thread(target=obey, args=(socket.socket(fileno=int(sys.argv[1])), points, made), daemon=True).start()
    sys.exit(main(sys.argv[2:]))
