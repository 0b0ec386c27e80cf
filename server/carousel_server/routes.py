"""The client port's paths, as typed calls on the core. Knows no engine, and no socket but through its writers."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from carousel_server.access_log import Trace
from carousel_server.auth import AdminToken, ApiKeys
from carousel_server.body import parse_object, read_body
from carousel_server.connection import WireLimits
from carousel_server.door import trace_of
from carousel_server.failure import Failure
from carousel_server.hop import Hop
from carousel_server.messages import Strict, declared_tools
from carousel_server.peers import HEADER, Forwarded, client_gone, verify
from carousel_server.request import (
    ChatBody,
    CompletionBody,
    SessionBody,
    chat_request,
    completion_request,
    settings,
    system_text,
    validate,
)
from carousel_server.response import JsonResponse, TurnResponse
from carousel_server.service import RequestView, SessionView, Turn
from carousel_server.shapes import ChatShape, CompletionShape
from carousel_server.stage import Core, ModelCard, Stage
from carousel_server.turn import TurnRequest

LARGE_BODY_BYTES = 32 * 1024  # parsed off the event loop from here on: about 1 ms
B = TypeVar("B", bound=Strict)


@dataclass
class Call:
    """A request whose sender is known and whose body is read."""

    request: Request
    trace: Trace
    key: str
    forwarded: Forwarded | None
    body: bytes

    @property
    def path(self) -> str:
        """Path and query, as the client wrote them."""
        query = self.request.url.query
        return self.request.url.path + (f"?{query}" if query else "")


class Routes:
    """One method for each path of the client port."""

    def __init__(self, stage: Stage, keys: ApiKeys, token: AdminToken, wire: WireLimits, hop: Hop) -> None:
        self._stage = stage
        self._keys = keys
        self._token = token
        self._wire = wire
        self.hop = hop
        self.turns: set[Turn] = set()  # every turn that is not closed; the shutdown cancels them

    # Turns

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`"""
        call = await self._call(request)
        core, _, card = self._stage.serving()
        body, raw = await self._parse(ChatBody, call)
        self._note_labels(call.trace, body.user, body.metadata)
        _check_model(body.model, card)
        call.trace.session = body.session_id
        if (elsewhere := await self.hop.for_session(core, call, body.session_id)) is not None:
            return elsewhere
        turn = chat_request(body, raw, id=body.request_id or "", key=call.key, defaults=self._stage.defaults)
        shape = ChatShape(
            id="",
            created=int(time.time()),
            model=card.name,
            logprobs=turn.settings.top_logprobs is not None,
            include_usage=turn.include_usage,
            session_id=body.session_id,
        )
        return await self._turn(call, core, turn, shape)

    async def completion(self, request: Request) -> Response:
        """`POST /v1/completions`"""
        call = await self._call(request)
        core, _, card = self._stage.serving()
        body, _ = await self._parse(CompletionBody, call)
        self._note_labels(call.trace, body.user, body.metadata)
        _check_model(body.model, card)
        if (elsewhere := await self.hop.for_session(core, call, None)) is not None:
            return elsewhere
        turn = completion_request(body, id=body.request_id or "", key=call.key, defaults=self._stage.defaults)
        shape = CompletionShape(
            id="",
            created=int(time.time()),
            model=card.name,
            logprobs=turn.settings.top_logprobs is not None,
            include_usage=turn.include_usage,
        )
        return await self._turn(call, core, turn, shape)

    async def _turn(self, call: Call, core: Core, request: TurnRequest, shape: Any) -> Response:
        _, preparer, _ = self._stage.serving()
        loop = asyncio.get_running_loop()
        turn = core.begin(request)
        self.turns.add(turn)
        shape.id = call.trace.id = turn.id
        call.trace.stream = request.stream
        watch = loop.create_task(self._watch(call, turn))

        def close() -> None:
            watch.cancel()
            turn.close()
            self.turns.discard(turn)

        try:
            limits = core.state().limits
            if request.id == "":
                request = with_id(request, turn.id)
            prepared = await preparer.turn(request, turn, limits)
            call.trace.prepared = loop.time()
            call.trace.prompt_tokens = len(prepared.prompt_tokens)
            turn.submit(prepared)
        except BaseException:
            close()
            raise
        headers = deadline_headers(core) if request.session_id else {}
        return TurnResponse(
            turn, shape, call.trace, self._stage.stats, stream=request.stream, headers=headers, closing=close
        )

    async def _watch(self, call: Call, turn: Turn) -> None:
        await client_gone(call.request.receive)
        call.trace.outcome = "disconnect"
        turn.cancel("disconnect")

    # Sessions

    async def create_session(self, request: Request) -> Response:
        """`POST /v1/sessions`"""
        call = await self._call(request)
        core, preparer, card = self._stage.serving()
        body, raw = await self._parse(SessionBody, call, empty_ok=True)
        _check_model(body.model, card)
        if (elsewhere := await self.hop.for_session(core, call, None)) is not None:
            return elsewhere
        chosen, _ = settings(body, self._stage.defaults, None)
        tools, system = declared_tools(raw.get("tools")), system_text(body)
        preparer.check_bias(chosen)
        view = core.create_session(call.key, chosen, system, tools, body.context_tokens)
        call.trace.session = view.id
        return JsonResponse(session_body(view), 201, deadline_headers(core))

    async def list_sessions(self, request: Request) -> Response:
        """`GET /v1/sessions`"""
        call = await self._call(request)
        core, _, _ = self._stage.serving()
        return JsonResponse(_list(core, [session_body(view) for view in core.list_sessions(call.key)]))

    async def show_session(self, request: Request) -> Response:
        """`GET /v1/sessions/{id}`"""
        call = await self._call(request)
        core, _, _ = self._stage.serving()
        identifier = call.trace.session = request.path_params["id"]
        if (elsewhere := await self.hop.for_session(core, call, identifier)) is not None:
            return elsewhere
        return JsonResponse(session_body(core.show_session(identifier, call.key)), headers=deadline_headers(core))

    async def delete_session(self, request: Request) -> Response:
        """`DELETE /v1/sessions/{id}`"""
        call = await self._call(request)
        core, _, _ = self._stage.serving()
        identifier = call.trace.session = request.path_params["id"]
        if (elsewhere := await self.hop.for_session(core, call, identifier)) is not None:
            return elsewhere
        core.delete_session(identifier, call.key)
        return JsonResponse({"id": identifier, "object": "session", "deleted": True})

    # Requests

    async def list_requests(self, request: Request) -> Response:
        """`GET /v1/requests`"""
        call = await self._call(request)
        core, _, _ = self._stage.serving()
        return JsonResponse(_list(core, [request_body(view) for view in core.list_requests(call.key)]))

    async def cancel_request(self, request: Request) -> Response:
        """`POST /v1/requests/{id}/cancel`"""
        call = await self._call(request)
        core, _, _ = self._stage.serving()
        identifier = call.trace.id = request.path_params["id"]
        try:
            core.cancel(identifier, call.key)
        except Failure as failure:
            if failure.code != "not_found":
                raise
            elsewhere = await self.hop.for_request(core, call, identifier)
            if elsewhere is None:
                raise
            return elsewhere
        return JsonResponse({"id": identifier, "object": "request", "cancelled": True})

    # What the server is

    async def list_models(self, request: Request) -> Response:
        """`GET /v1/models`"""
        await self._call(request)
        _, _, card = self._stage.serving()
        return JsonResponse({"object": "list", "data": [card.body()]})

    async def show_model(self, request: Request) -> Response:
        """`GET /v1/models/{id}`"""
        await self._call(request)
        _, _, card = self._stage.serving()
        _check_model(request.path_params["id"], card)
        return JsonResponse(card.body())

    # From bytes to a call

    async def _call(self, request: Request) -> Call:
        """Who asks, and the body. Raises Failure 401, 408, 413."""
        trace = trace_of(request)
        authorization = request.headers.get("authorization")
        now = asyncio.get_running_loop().time()
        header = request.headers.get(HEADER)
        if header is None:  # before a byte of the body is taken
            trace.key = self._keys.name_of(authorization, now)
        body = await self._read(request)
        trace.bytes_in = len(body)
        call = Call(request, trace, trace.key, None, body)
        if header is not None:
            core = self._stage.core
            call.forwarded = verify(
                self._token.read(),
                header,
                own=core.ordinal if core is not None else -1,
                method=request.method,
                path=call.path,
                body=body,
            )
            if call.forwarded is not None:
                call.key = trace.key = call.forwarded.key
                trace.forwarded_from = call.forwarded.origin
            else:
                call.key = trace.key = self._keys.name_of(authorization, now)
        return call

    async def _read(self, request: Request) -> bytes:
        if request.method in ("GET", "HEAD"):
            return b""
        declared = request.headers.get("content-length")
        return await read_body(
            request.receive,
            int(declared) if declared is not None and declared.isdigit() else None,
            self._wire.body_bytes,
            self._wire.socket_seconds,
        )

    async def _parse(self, shape: type[B], call: Call, *, empty_ok: bool = False) -> tuple[B, dict[str, Any]]:
        _, preparer, _ = self._stage.serving()

        def work() -> tuple[B, dict[str, Any]]:
            raw = {} if empty_ok and not call.body.strip() else parse_object(call.body)
            return validate(shape, raw), raw

        return await preparer.run(work) if len(call.body) > LARGE_BODY_BYTES else work()

    @staticmethod
    def _note_labels(trace: Trace, user: str | None, metadata: dict[str, str] | None) -> None:
        trace.labels = {name: value for name, value in (("user", user), ("metadata", metadata)) if value}


def with_id(request: TurnRequest, identifier: str) -> TurnRequest:
    """The request under the id that the registry made."""
    from dataclasses import replace

    return replace(request, id=identifier)


def deadline_headers(core: Core) -> dict[str, str]:
    """During a drain: the seconds that a session can count on once its turn has ended."""
    seconds = core.session_seconds()
    return {} if seconds is None else {"x-session-deadline": f"{seconds:.0f}"}


def session_body(view: SessionView) -> dict[str, Any]:
    """A session as clients see it."""
    return {
        "id": view.id,
        "object": "session",
        "created": int(time.time() - view.created_seconds_ago),
        "idle_seconds": round(view.idle_seconds, 3),
        "turns": view.turns,
        "last_request_id": view.last_request_id,
        "in_flight": view.in_flight,
        "context_tokens": view.context_tokens,
        "history_bytes": view.history_bytes,
    }


def request_body(view: RequestView) -> dict[str, Any]:
    """A request as clients see it."""
    return {
        "id": view.id,
        "object": "request",
        "session_id": view.session_id,
        "phase": view.phase,
        "queue_position": view.queue_position,
        "prompt_tokens": view.prompt_tokens,
        "cached_tokens": view.cached_tokens,
        "output_tokens": view.output_tokens,
        "reserved_bytes": view.reserved_bytes,
        "age_seconds": round(view.age_seconds, 3),
    }


def _list(core: Core, data: list[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "pod": {"ordinal": core.ordinal, "boot_id": core.boot_id}, "data": data}


def _check_model(name: str | None, card: ModelCard) -> None:
    if name is not None and name != card.name:
        raise Failure(
            "model_not_found", f"There is no model {name!r} here; this server has {card.name}.", param="model"
        )
