"""Calls of a pod's admin port, by pod IP. An unreachable pod is an answer, not an exception, when it is only asked."""

from collections.abc import Callable
from typing import Any

import httpx
from carousel_server.admin_state import AdminState, CloseRequest, DrainRequest, LimitsUpdate, PeersUpdate
from carousel_server.limits import Limits
from pydantic import BaseModel, ValidationError

from carousel_operator import names

# A healthy admin port answers within milliseconds; a pod that needs longer counts as unreachable this time.
CALL_SECONDS = 3.0


class AdminError(Exception):
    """A call that the pod did not take; status 0 means no answer."""

    def __init__(self, call: str, ip: str, status: int, message: str) -> None:
        super().__init__(f"{call} of {ip}: {status or 'no answer'} {message}")
        self.status = status


class AdminClient:
    """One HTTP client for all pods. `token` is the admin token of the pod's InferenceServer."""

    def __init__(
        self, *, port: int = names.ADMIN_PORT, count: Callable[[str, str], None] = lambda call, outcome: None
    ) -> None:
        self._port = port
        self._count = count
        # trust_env off: a proxy of the environment must not see pod addresses or tokens.
        self._http = httpx.AsyncClient(timeout=CALL_SECONDS, trust_env=False)

    async def close(self) -> None:
        """Close the connection pool."""
        await self._http.aclose()

    async def state(self, ip: str, token: str) -> tuple[AdminState | None, str]:
        """`GET /admin/state`: the state, or None and why there is none."""
        if not ip:
            return None, "it has no address yet"
        try:
            answer = await self._call("GET", "state", ip, token)
            return AdminState.model_validate_json(answer.content), ""
        except AdminError as error:
            return None, str(error)
        except ValidationError as error:
            return None, f"state of {ip} does not read: {error.errors()[0]['msg']}"

    async def quiesce(self, ip: str, token: str, request: DrainRequest) -> None:
        """`POST /admin/drain`."""
        await self._call("POST", "drain", ip, token, request)

    async def close_drain(self, ip: str, token: str, *, force: bool) -> bool:
        """`POST /admin/drain/close`; False when a request or a recent session is there."""
        try:
            await self._call("POST", "drain/close", ip, token, CloseRequest(force=force))
        except AdminError as error:
            if error.status == 409:
                return False
            raise
        return True

    async def undo(self, ip: str, token: str) -> None:
        """`DELETE /admin/drain`."""
        await self._call("DELETE", "drain", ip, token)

    async def put_limits(self, ip: str, token: str, generation: int, limits: Limits) -> bool:
        """`PUT /admin/limits`; False when the pod has newer ones."""
        try:
            await self._call("PUT", "limits", ip, token, LimitsUpdate(generation=generation, limits=limits))
        except AdminError as error:
            if error.status == 409:
                return False
            raise
        return True

    async def put_peers(self, ip: str, token: str, peers: PeersUpdate) -> None:
        """`PUT /admin/peers`."""
        await self._call("PUT", "peers", ip, token, peers)

    async def _call(self, verb: str, what: str, ip: str, token: str, body: BaseModel | None = None) -> httpx.Response:
        host = f"[{ip}]" if ":" in ip else ip
        headers = {"Authorization": f"Bearer {token}"}
        content: Any = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = body.model_dump_json(by_alias=True)
        url = f"http://{host}:{self._port}/admin/{what}"
        try:
            answer = await self._http.request(verb, url, headers=headers, content=content)
        except httpx.HTTPError as error:
            self._count(what, "unreachable")
            raise AdminError(f"{verb} {what}", ip, 0, type(error).__name__) from error
        self._count(what, "ok" if answer.is_success else str(answer.status_code))
        if not answer.is_success:
            raise AdminError(f"{verb} {what}", ip, answer.status_code, answer.text[:200])
        return answer
