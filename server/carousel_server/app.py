"""The applications of the two ports: which path is whose, behind the door that every request passes."""

from importlib import resources
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from starlette.requests import Request
from starlette.responses import Response

from carousel_server.admin import Admin
from carousel_server.door import Door, install_handlers
from carousel_server.openapi import OPERATIONS, document
from carousel_server.response import JsonResponse
from carousel_server.routes import Routes
from carousel_server.stage import Stage

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


def client_app(routes: Routes, stage: Stage, *, keys_required: bool, log: bool) -> Door:
    """The client port: `/v1`, `/health`, `/metrics`, `/openapi.json` and the chat page."""
    app = _bare()
    for path, method, name in OPERATIONS:
        app.add_api_route(path, getattr(routes, name), methods=[method], include_in_schema=False)
    page = resources.files("carousel_server").joinpath("chat_page/index.html").read_bytes()

    async def chat_page(request: Request) -> Response:
        return HTMLResponse(page, headers=PAGE_HEADERS)

    async def health(request: Request) -> Response:
        status, body = stage.health()
        return JsonResponse(body, status)

    async def metrics(request: Request) -> Response:
        return Response(stage.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(request: Request) -> Response:
        return JsonResponse(document(keys_required=keys_required))

    for path, handler in (("/", chat_page), ("/health", health), ("/metrics", metrics), ("/openapi.json", openapi)):
        app.add_api_route(path, handler, methods=["GET"], include_in_schema=False)
    return Door(app, log=log)


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
