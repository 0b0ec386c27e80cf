"""The applications of the two ports: which path is whose, behind the door that every request passes."""

from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from carousel_server.admin import Admin
from carousel_server.door import Door, install_handlers
from carousel_server.openapi import OPERATIONS, document
from carousel_server.response import JsonResponse
from carousel_server.routes import Routes
from carousel_server.stage import Stage

PAGE = (
    ("/", "index.html", "text/html"),
    ("/chat.css", "chat.css", "text/css"),
    ("/chat.js", "chat.js", "text/javascript"),
)
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


def client_app(routes: Routes, stage: Stage, *, keys_required: bool, log: bool) -> Door:
    """The client port: `/v1`, `/health`, `/metrics`, `/openapi.json` and the chat page."""
    app = _bare()
    for path, method, name in OPERATIONS:
        app.add_api_route(path, getattr(routes, name), methods=[method], include_in_schema=False)
    for path, name, kind in PAGE:
        app.add_api_route(path, _file(name, kind), methods=["GET"], include_in_schema=False)

    async def health(request: Request) -> Response:
        status, body = stage.health()
        return JsonResponse(body, status)

    async def metrics(request: Request) -> Response:
        return Response(stage.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(request: Request) -> Response:
        return JsonResponse(document(keys_required=keys_required))

    for path, handler in (("/health", health), ("/metrics", metrics), ("/openapi.json", openapi)):
        app.add_api_route(path, handler, methods=["GET"], include_in_schema=False)
    return Door(app, log=log, stats=stage.stats, leaving=lambda: stage.leaving)


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = resources.files("carousel_server").joinpath("chat_page", name).read_bytes()

    async def file(request: Request) -> Response:
        return Response(content, media_type=kind, headers=PAGE_HEADERS)

    return file


def admin_app(admin: Admin) -> Door:
    """The admin port; see docs/observability.md."""
    app = _bare()
    for path, method, handler in (
        ("/livez", "GET", admin.livez),
        ("/readyz", "GET", admin.readyz),
        ("/admin/state", "GET", admin.state),
        ("/admin/drain", "POST", admin.drain),
        ("/admin/drain", "DELETE", admin.undo_drain),
        ("/admin/drain/close", "POST", admin.close_drain),
        ("/admin/limits", "GET", admin.limits),
        ("/admin/limits", "PUT", admin.set_limits),
        ("/admin/peers", "PUT", admin.set_peers),
        ("/admin/plan", "GET", admin.plan),
    ):
        app.add_api_route(path, handler, methods=[method], include_in_schema=False)
    return Door(app, log=False)


def _bare() -> Any:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    install_handlers(app)
    return app
