"""The outermost layer of a port: every request gets an id, an answer in the error shape, and a log line."""

import asyncio
import datetime
import logging
import re
import secrets
from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from carousel_server.access_log import Trace
from carousel_server.body import Disconnected
from carousel_server.connection import Stalled
from carousel_server.failure import Failure
from carousel_server.http_stats import HttpStats
from carousel_server.response import error_response

logger = logging.getLogger("carousel.access")
errors = logging.getLogger(__name__)
CORRELATION = re.compile(r"[\x21-\x7e]{1,128}")


class Door:
    """Wraps a port's application; see the module. `log` turns access lines on.

    While `leaving`, every answer ends its connection, so that few are left idle when the process ends: a request that a
    client sends just as an idle one is closed is lost.
    """

    def __init__(
        self, app: Any, *, log: bool, stats: HttpStats | None = None, leaving: Callable[[], bool] = lambda: False
    ) -> None:
        self._app = app
        self._stats = stats
        self._log = log
        self._leaving = leaving

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        loop = asyncio.get_running_loop()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        trace = Trace(
            method=scope["method"],
            path=scope["path"],
            client=scope["client"][0] if scope.get("client") else "",
            started=loop.time(),
            correlation=given if CORRELATION.fullmatch(given) else None,
        )
        scope["state"]["trace"] = trace

        async def tracked(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                own = trace.id if trace.id and CORRELATION.fullmatch(trace.id) else None
                shown = trace.correlation or own or secrets.token_hex(16)
                kept = [(name, value) for name, value in message.get("headers", []) if name != b"x-request-id"]
                more = [(b"x-request-id", shown.encode("latin-1"))]
                if self._leaving():
                    more.append((b"connection", b"close"))
                message = {**message, "headers": [*kept, *more]}
            else:
                trace.bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, tracked)
        except Disconnected:
            trace.outcome = "disconnect"
        except Stalled:
            trace.outcome = "write_timeout"
        except asyncio.CancelledError:
            trace.outcome = trace.outcome or "server_shutdown"
            raise
        except Exception as error:
            trace.outcome = "internal_error"
            errors.error("%s %s failed", trace.method, trace.path, exc_info=error)
            if trace.status == 0:
                await error_response(internal_error())(scope, receive, tracked)
        finally:
            if self._stats is not None:
                count(self._stats, trace, scope, loop.time())
            if self._log:
                wall = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
                logger.info("request", extra={"line": trace.record(loop.time(), wall)})


def count(stats: HttpStats, trace: Trace, scope: Any, now: float) -> None:
    """One ended request."""
    route = scope.get("route")  # the pattern, not the path: ids would make a time series each
    stats.requests.labels(getattr(route, "path", "unknown"), trace.final_outcome).inc()
    if trace.forwarded_to is not None:
        stats.forwarded.labels(str(trace.forwarded_to)).inc()
    if trace.lost_cause:
        stats.lost.labels(trace.lost_cause).inc()
    if trace.prepared is None:
        return
    stats.request.observe(now - trace.started)
    if trace.work_begun is not None:
        stats.queue.observe(trace.work_begun - trace.prepared)
    if trace.first_output is not None:
        stats.first_output.observe(trace.first_output - trace.started)


def internal_error() -> Failure:
    """For what nobody foresaw; the log has the rest."""
    return Failure("internal_error", "The server failed in a way it did not expect; its log has the details.")


def trace_of(request: Request) -> Trace:
    """The request's trace."""
    trace: Trace = request.scope["state"]["trace"]
    return trace


def install_handlers(app: Any) -> None:
    """All errors of a FastAPI application in the error shape."""
    app.add_exception_handler(Failure, _on_failure)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Disconnected, _on_disconnect)
    app.add_exception_handler(Exception, _on_surprise)  # the door logs it: Starlette raises it again


async def _on_failure(request: Request, failure: Failure) -> Response:
    trace = trace_of(request)
    trace.outcome = failure.code
    if failure.code == "session_lost":
        trace.lost_cause = str(failure.details.get("cause", "unknown"))
    return error_response(failure)


async def _on_disconnect(request: Request, _: Exception) -> Response:
    trace_of(request).outcome = "disconnect"
    return Response(status_code=499)


async def _on_surprise(request: Request, _: Exception) -> Response:
    return error_response(internal_error())


async def _on_http(request: Request, error: HTTPException) -> Response:
    if error.status_code == 405:
        matching = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
        allow = ", ".join(sorted({method for route in matching for method in route.methods}))
        failure = Failure("method_not_allowed", f"{request.url.path} takes {allow}, not {request.method}.")
        response = error_response(failure)
        response.headers["allow"] = allow
    else:
        failure = Failure("not_found", f"There is nothing at {request.url.path}; docs/api.md lists the paths.")
        response = error_response(failure)
    trace_of(request).outcome = failure.code
    return response
