"""The writers of a turn's reply, as JSON and as server-sent events, and the commit point between them.

The claim: a stream claims before its finish chunk, a JSON reply before its first byte. What was claimed is written
and cannot be cancelled; what was not is never shown as complete.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from carousel_server.access_log import Trace
from carousel_server.connection import Stalled, connection_of, send_or_stall
from carousel_server.failure import Failure
from carousel_server.http_stats import HttpStats
from carousel_server.service import Turn
from carousel_server.shapes import Shape
from carousel_server.turn import CallDelta, Completion, Event, Failed, Progress, TextDelta

COMMENT_SECONDS = 2.0
PIECE_BYTES = 64 * 1024
DONE = b"data: [DONE]\n\n"
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


def frame(payload: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(payload) + b"\n\n"


def comment(progress: Progress | None) -> bytes:
    """A line that clients skip and people read: where the request is."""
    if progress is None:
        return b": generating\n\n"
    if progress.phase == "queued":
        return f": queued {progress.done}\n\n".encode()
    return f": prefill {progress.done}/{progress.total}\n\n".encode()


def failure_of(event: Failed) -> Failure:
    """The event of a turn that ended without a reply, as the error that a client sees."""
    return Failure(event.code, event.message, details=event.details)


def error_headers(failure: Failure) -> dict[str, str]:
    """The headers that an error's status asks for."""
    headers: dict[str, str] = {}
    if failure.retry_after is not None:
        headers["retry-after"] = str(max(1, round(failure.retry_after)))
    if failure.status == 401:
        headers["www-authenticate"] = "Bearer"
    if failure.status in (408, 413, 431):
        headers["connection"] = "close"
    return headers


class JsonResponse(Response):
    """A JSON body, written in pieces so that a slow reader costs little memory and is noticed."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(to_json(content), status, dict(headers or {}))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = bytes(self.body)
        for start in range(0, max(len(body), 1), PIECE_BYTES):
            more = start + PIECE_BYTES < len(body)
            piece = {"type": "http.response.body", "body": body[start : start + PIECE_BYTES], "more_body": more}
            await send_or_stall(scope, send, piece)


def error_response(failure: Failure) -> JsonResponse:
    """A failure as a whole response."""
    return JsonResponse(failure.body(), failure.status, error_headers(failure))


class TurnResponse(Response):
    """Writes a submitted turn. Owns the turn and the watch over its client: ends both on every path."""

    def __init__(
        self,
        turn: Turn,
        shape: Shape,
        trace: Trace,
        stats: HttpStats,
        *,
        stream: bool,
        headers: Mapping[str, str],
        closing: Callable[[], None],
    ) -> None:
        self.turn = turn
        self.closing = closing
        self.shape = shape
        self.trace = trace
        self.stats = stats
        self.stream = stream
        self.extra = dict(headers)
        self.status_code = 200
        self.background = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            if self.stream:
                await self._stream(scope, send)
            else:
                await self._json(scope, receive, send)
        except Stalled:
            self.turn.cancel("write_timeout")
            self.trace.outcome = "write_timeout"
        except asyncio.CancelledError:
            self.turn.cancel("shutdown")
            raise
        finally:
            self.closing()

    async def _json(self, scope: Any, receive: Any, send: Any) -> None:
        response: JsonResponse | None = None
        async for event in self.turn.events():
            if isinstance(event, TextDelta | CallDelta):
                self._note_output()
            elif isinstance(event, Completion):
                body = self.shape.body(event)
                if self.turn.claim(event):
                    self._note_completion(event)
                    response = JsonResponse(body, headers=self.extra)
                else:
                    response = error_response(self._note(Failure("cancelled", "The request was cancelled.")))
            elif isinstance(event, Failed):
                failure = self._note(failure_of(event))
                response = error_response(failure)
        assert response is not None, "a turn's events end with a Completion or Failed"
        await response(scope, receive, send)

    async def _stream(self, scope: Any, send: Any) -> None:
        headers = [(k.encode(), v.encode()) for k, v in {**STREAM_HEADERS, **self.extra}.items()]
        if (connection := connection_of(scope)) is not None:
            connection.whole_events = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def write(data: bytes, more: bool = True) -> None:
            await send_or_stall(scope, send, {"type": "http.response.body", "body": data, "more_body": more})

        opened = False
        where: Progress | None = None
        async with contextlib.aclosing(with_pauses(self.turn.events(), COMMENT_SECONDS)) as events:
            async for event in events:
                if event is None:
                    await write(comment(where))
                    continue
                if isinstance(event, Progress):
                    if event.phase == "prefill":
                        self.trace.note_work(asyncio.get_running_loop().time())
                    if where is None or where.phase != event.phase:
                        await write(comment(event))
                    where = event
                    continue
                where = None
                if isinstance(event, Failed):
                    await write(frame(self._note(failure_of(event)).body()) + DONE, more=False)
                    return
                data = b"" if opened else b"".join(map(frame, self.shape.opening()))
                opened = True
                if isinstance(event, Completion):
                    await self._finish(event, data, write)
                    return
                self._note_output()
                if isinstance(event, TextDelta):
                    await write(data + frame(self.shape.text(event)))
                else:
                    await write(data + b"".join(map(frame, self.shape.call(event))))

    async def _finish(self, completion: Completion, data: bytes, write: Any) -> None:
        last = [self.shape.finish(completion)]
        if self.shape.include_usage:
            last.append(self.shape.usage(completion.usage))
        frames = b"".join(map(frame, last))
        if data:
            await write(data)
        if not self.turn.claim(completion):
            failure = self._note(Failure("cancelled", "The request was cancelled."))
            await write(frame(failure.body()) + DONE, more=False)
            return
        self._note_completion(completion)
        await write(frames + DONE, more=False)

    def _note(self, failure: Failure) -> Failure:
        self.trace.outcome = failure.code
        return failure

    def _note_output(self) -> None:
        gap = self.trace.note_output(asyncio.get_running_loop().time())
        if gap is not None:
            self.stats.inter_output.observe(gap)

    def _note_completion(self, completion: Completion) -> None:
        self.trace.outcome = "ok"
        self.trace.finish = completion.finish
        self.trace.prompt_tokens = completion.usage.prompt_tokens
        self.trace.cached_tokens = completion.usage.cached_tokens
        self.trace.completion_tokens = completion.usage.completion_tokens


async def with_pauses(events: AsyncIterator[Event], seconds: float) -> AsyncGenerator[Event | None, None]:
    """The events, and None whenever `seconds` passed without one or since the last None."""
    loop = asyncio.get_running_loop()
    spoke = loop.time()
    pending: asyncio.Task[Event] | None = None
    try:
        while True:
            if pending is None:
                pending = asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({pending}, timeout=max(0.0, spoke + seconds - loop.time()))
            if not done:
                spoke = loop.time()
                yield None
                continue
            task, pending = pending, None
            try:
                event = task.result()
            except StopAsyncIteration:
                return
            if not isinstance(event, Progress):
                spoke = loop.time()
            elif loop.time() - spoke >= seconds:
                yield event
                spoke = loop.time()
                yield None
                continue
            yield event
    finally:
        if pending is not None:
            pending.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await pending
