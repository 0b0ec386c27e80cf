"""Puts the core together: one service, one worker thread, one engine. Reads no configuration and opens no socket."""

import os
import time
from collections.abc import Callable

from carousel_server.core import Core
from carousel_server.engine.protocol import Engine, EngineInfo
from carousel_server.identity import Identity
from carousel_server.job import ReplyMaker
from carousel_server.limits import Limits
from carousel_server.local_service import LocalService
from carousel_server.memory_plan import MemoryPlan
from carousel_server.pace import Pace
from carousel_server.reply import Reply
from carousel_server.tokenizer import Vocabulary
from carousel_server.turn import PreparedTurn
from carousel_server.worker import Worker
from carousel_server.worker_thread import WorkerThread


def reply_maker(vocabulary: Vocabulary) -> ReplyMaker:
    """Replies as the request asked for them; `room` is limits.responseBytes."""

    def make(prepared: PreparedTurn, room: int) -> Reply:
        request = prepared.request
        return Reply(
            vocabulary,
            tools=request.tools,
            parse_calls=bool(request.tools) and not request.tools_off,
            stop=request.settings.stop,
            max_bytes=room,
            parallel=request.settings.parallel_tool_calls,
            logprobs=request.settings.top_logprobs is not None,
        )

    return make


def build_service(
    load: Callable[[], Engine],
    vocabulary: Vocabulary,
    *,
    plan: MemoryPlan,
    replan: Callable[[Limits], MemoryPlan],
    ordinal: int = 0,
    identity: Identity | None = None,
    version: str = "",
    on_fatal: Callable[[Exception], None] = lambda error: None,
    clock: Callable[[], float] = time.monotonic,
    entropy: Callable[[int], bytes] = os.urandom,
) -> LocalService:
    """A running service. Blocks until `load`, which is called on the worker's thread, has made the engine.

    An `identity` that the ports show while loading is kept; without one it is made here for `ordinal`.
    `replan` plans other limits for the same checkpoint and machine; `on_fatal` is called once, from the worker's
    thread, with what ended it. Raises what `load` raises.
    """
    context = plan.engine.context_tokens or 0
    nothing = EngineInfo(0, 0, context, 0, 0, frozenset(), 0, 0)
    core = Core(plan.limits, plan.engine, nothing, context)
    service = LocalService(
        core,
        plan=plan,
        replan=replan,
        identity=identity or Identity(ordinal, entropy),
        entropy=entropy,
        version=version,
        clock=clock,
    )
    pace = Pace(plan.engine.prefill_chunk or 1024, paced=not plan.experts_streamed)

    def make(engine: Engine) -> Worker:
        core.attach(engine.info)
        return Worker(core, engine, reply_maker(vocabulary), pace, clock)

    def fatal(error: Exception) -> None:
        service.lost(str(error))
        on_fatal(error)

    thread = WorkerThread(core, load, make, fatal, clock)
    service.attach(thread.start(), thread.notify, thread)
    return service
