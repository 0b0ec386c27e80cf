"""The admin port: what kubelet and the operator ask. The messages are admin_state.py's, exactly."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from carousel_server.admin_state import CloseRequest, DrainRequest, LimitsUpdate, PeersUpdate
from carousel_server.auth import AdminToken
from carousel_server.body import parse_object, read_body
from carousel_server.connection import WireLimits
from carousel_server.failure import Failure
from carousel_server.hop import Hop
from carousel_server.response import JsonResponse
from carousel_server.stage import Core, Stage

BODY_BYTES = 1024 * 1024
M = TypeVar("M", bound=BaseModel)


class Admin:
    """One method for each path of the admin port. `wire` is the client port's: hot limits reach it here."""

    def __init__(self, stage: Stage, token: AdminToken, wire: WireLimits, hop: Hop) -> None:
        self._stage = stage
        self._token = token
        self._wire = wire
        self._hop = hop

    async def livez(self, request: Request) -> Response:
        """False only when nothing but a restart helps: the worker thread is dead, or the device is lost."""
        why = self._stage.dead
        return JsonResponse({"live": not why, "message": why}, 503 if why else 200)

    async def readyz(self, request: Request) -> Response:
        """False while loading and after a close; true while sessions live in a drain."""
        state = self._stage.state()
        ready = state.phase == "serving" or (state.phase == "draining" and state.sessions.active > 0)
        ready = ready and not self._stage.stopping
        return JsonResponse({"ready": ready, "phase": state.phase, "message": state.message}, 200 if ready else 503)

    async def state(self, request: Request) -> Response:
        """`GET /admin/state`"""
        self._check(request)
        return self._state()

    async def drain(self, request: Request) -> Response:
        """`POST /admin/drain`: no new work; the same again replaces the first."""
        core = self._core(request)
        core.drain(await self._body(request, DrainRequest))
        return self._state()

    async def undo_drain(self, request: Request) -> Response:
        """`DELETE /admin/drain`: take work again."""
        core = self._core(request)
        core.undo_drain()
        return self._state()

    async def close_drain(self, request: Request) -> Response:
        """`POST /admin/drain/close`: no turn any more; 409 when it is not quiet and not forced."""
        core = self._core(request)
        close = await self._body(request, CloseRequest)
        if core.state().drain is None:
            raise Failure("not_quiet", "There is no drain to close; start one with POST /admin/drain.")
        if not core.close_drain(close.force):
            now = core.state()
            raise Failure(
                "not_quiet",
                f"{now.requests.running} requests run, {now.requests.queued} wait, and a session was used "
                f"{now.sessions.newest_use_seconds or 0:.0f} s ago; close again later, or with force.",
            )
        return self._state()

    async def limits(self, request: Request) -> Response:
        """`GET /admin/limits`: what is in force."""
        core = self._core(request)
        state = core.state()
        return JsonResponse(
            {"generation": state.limits_generation, "limits": state.limits.model_dump(mode="json", by_alias=True)}
        )

    async def set_limits(self, request: Request) -> Response:
        """`PUT /admin/limits`: hot; an older generation gets 409."""
        core = self._core(request)
        update = await self._body(request, LimitsUpdate)
        if not core.set_limits(update.generation, update.limits):
            raise _stale(update.generation, core.state().limits_generation)
        in_force = core.state().limits
        self._wire.body_bytes, self._wire.socket_seconds = in_force.request_bytes, in_force.socket_timeout
        return await self.limits(request)

    async def set_peers(self, request: Request) -> Response:
        """`PUT /admin/peers`: the pods of this InferenceServer and the boots that were lost."""
        core = self._core(request)
        update = await self._body(request, PeersUpdate)
        if not core.set_peers(update):
            raise _stale(update.generation, core.state().peers_generation)
        return JsonResponse({"generation": core.state().peers_generation})

    async def plan(self, request: Request) -> Response:
        """`GET /admin/plan`: the memory plan, as a table of bytes."""
        self._check(request)
        return JsonResponse((self._stage.core or self._stage).plan.to_dict())

    def _check(self, request: Request) -> None:
        self._token.check(request.headers.get("authorization"))

    def _state(self) -> Response:
        state = self._stage.state()
        requests = state.requests.model_copy(update={"forwarded": self._hop.passing})
        state = state.model_copy(update={"requests": requests})
        return JsonResponse(state.model_dump(mode="json", by_alias=True))

    def _core(self, request: Request) -> Core:
        self._check(request)
        core, _, _ = self._stage.serving()
        return core

    async def _body(self, request: Request, shape: type[M]) -> M:
        body = await read_body(request.receive, None, BODY_BYTES, 10.0)
        try:
            return shape.model_validate(parse_object(body) if body.strip() else {})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            param = ".".join(str(step) for step in first["loc"])
            raise Failure("invalid_request", f"{param}: {first['msg']}.", param=param) from None


def _stale(sent: int, in_force: int) -> Failure:
    return Failure(
        "stale_generation",
        f"Generation {sent} is older than {in_force}, which is in force; read it and start from there.",
    )
