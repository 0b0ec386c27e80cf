"""The writers of a turn's reply, as JSON and as server-sent events, and the commit point between them.

The claim: a stream claims before its finish chunk, a JSON reply before its first byte. What was claimed is written
and cannot be cancelled; what was not is never shown as complete.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from carousel_server.access_log import Trace
from carousel_server.connection import Stalled, connection_of, send_or_stall
from carousel_server.failure import Failure
from carousel_server.http_stats import HttpStats
from carousel_server.service import Turn
from carousel_server.shapes import Shape
from carousel_server.sse import DONE, Frames, comment, frame
from carousel_server.turn import Completion, Failed, Progress

COMMENT_SECONDS = 2.0
PIECE_BYTES = 64 * 1024
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


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
        while response is None:
            output = False
            for event in await self.turn.events():
                if isinstance(event, Completion):
                    response = self._whole(event)
                elif isinstance(event, Failed):
                    response = error_response(self._note(failure_of(event)))
                elif not isinstance(event, Progress) and not output:
                    self._note_output()
                    output = True
        await response(scope, receive, send)

    def _whole(self, completion: Completion) -> JsonResponse:
        body = self.shape.body(completion)
        if not self.turn.claim(completion):
            return error_response(self._note(Failure("cancelled", "The request was cancelled.")))
        self._note_completion(completion)
        return JsonResponse(body, headers=self.extra)

    async def _stream(self, scope: Any, send: Any) -> None:
        """All that waits goes out in one write: a writer that falls behind the worker has less to do for each token."""
        headers = [(k.encode(), v.encode()) for k, v in {**STREAM_HEADERS, **self.extra}.items()]
        if (connection := connection_of(scope)) is not None:
            connection.whole_events = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def write(data: bytes | bytearray, more: bool = True) -> None:
            await send_or_stall(scope, send, {"type": "http.response.body", "body": bytes(data), "more_body": more})

        clock, frames = asyncio.get_running_loop().time, Frames(self.shape)
        opened, where, spoke = False, None, clock()
        while True:
            events = await self.turn.events(spoke + COMMENT_SECONDS - clock())
            data, output = bytearray(), False
            for event in events:
                if isinstance(event, Progress):
                    if event.phase == "prefill":
                        self.trace.note_work(clock())
                    if where is None or where.phase != event.phase:
                        data += comment(event)
                        spoke = clock()
                    where = event
                    continue
                if isinstance(event, Failed):
                    await write(data + frame(self._note(failure_of(event)).body()) + DONE, more=False)
                    return
                if not opened:
                    data += frames.opening()
                    opened = True
                if isinstance(event, Completion):
                    await self._finish(event, frames, data, write)
                    return
                if not output:
                    self._note_output()
                    output, where, spoke = True, None, clock()
                data += frames.output(event)
                if len(data) >= PIECE_BYTES:
                    await write(data)
                    data.clear()
            if clock() - spoke >= COMMENT_SECONDS:
                data += comment(where)
                spoke = clock()
            if data:
                await write(data)

    async def _finish(self, completion: Completion, frames: Frames, data: bytearray, write: Any) -> None:
        if data:
            await write(data)
        if not self.turn.claim(completion):
            failure = self._note(Failure("cancelled", "The request was cancelled."))
            await write(frame(failure.body()) + DONE, more=False)
            return
        self._note_completion(completion)
        await write(frames.ending(completion), more=False)

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
