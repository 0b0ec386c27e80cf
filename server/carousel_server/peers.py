"""Requests between pods of one InferenceServer: the signature that proves their origin, and the hop itself.

One hop only: a request that a pod sent on is never sent on again. A target comes from the peers table, never from a
client's text.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic_core import to_json
from starlette.responses import Response

from carousel_server.access_log import Trace
from carousel_server.admin_state import Peer
from carousel_server.connection import Stalled, send_or_stall
from carousel_server.failure import Failure

HEADER = "x-carousel-forwarded"
CONNECT_SECONDS = 3.0
PASSED_ON = ("content-type", "accept", "x-request-id")
PASSED_BACK = (
    "content-type",
    "cache-control",
    "retry-after",
    "x-request-id",
    "x-session-deadline",
    "x-accel-buffering",
)


@dataclass(frozen=True)
class Forwarded:
    """A valid forwarding header: whose request it is, and the boot that sent it on."""

    key: str
    origin: str


def sign(token: bytes, *, target: int, method: str, path: str, key: str, origin: str, nonce: str, body: bytes) -> str:
    """The header of a forwarded request: `v1 <key in base64> <origin> <nonce> <mac>`."""
    name = base64.urlsafe_b64encode(key.encode()).decode()
    return f"v1 {name or '-'} {origin} {nonce} {_mac(token, target, method, path, key, origin, nonce, body)}"


def _mac(token: bytes, target: int, method: str, path: str, key: str, origin: str, nonce: str, body: bytes) -> str:
    digest = hashlib.sha256(body).hexdigest()
    message = "\n".join(("carousel-forward-v1", str(target), method, path, key, origin, nonce, digest))
    return hmac.new(token, message.encode(), "sha256").hexdigest()


def verify(
    token: bytes | None, header: str | None, *, own: int, method: str, path: str, body: bytes
) -> Forwarded | None:
    """What a forwarding header says if it is genuine and meant for this pod; None otherwise: it is then ignored."""
    parts = (header or "").split(" ")
    if token is None or len(parts) != 5 or parts[0] != "v1":
        return None
    _, name, origin, nonce, mac = parts
    try:
        key = "" if name == "-" else base64.urlsafe_b64decode(name).decode()
    except ValueError:
        return None
    expected = _mac(token, own, method, path, key, origin, nonce, body)
    return Forwarded(key, origin) if hmac.compare_digest(mac.encode(), expected.encode()) else None


class Forwarder:
    """Sends requests on to peers and their replies back, both ways as they come."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=1024, max_keepalive_connections=32, keepalive_expiry=20),
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def open(
        self,
        peer: Peer,
        token: bytes | None,
        *,
        method: str,
        path: str,
        key: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> httpx.Response:
        """The peer's reply, its body not yet read. Raises Failure owner_unreachable."""
        if token is None:
            raise unreachable(peer, "this pod has no admin token to sign with")
        nonce = secrets.token_hex(16)
        signed = sign(
            token, target=peer.ordinal, method=method, path=path, key=key, origin=self._origin, nonce=nonce, body=body
        )
        passed = {name: headers[name] for name in PASSED_ON if name in headers}
        request = self._client.build_request(
            method, f"http://{peer.address}{path}", content=body or None, headers={**passed, HEADER: signed}
        )
        try:
            return await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise unreachable(peer, str(error) or type(error).__name__) from None


def unreachable(peer: Peer, why: str) -> Failure:
    """503: the owner did not answer, and that proves nothing about its sessions."""
    return Failure(
        "owner_unreachable",
        f"pod {peer.ordinal}, which owns this, cannot be reached ({why}); retry: the session may still be there.",
        retry_after=2.0,
    )


class ForwardedResponse(Response):
    """A peer's reply, passed back as it comes; the client's disconnect ends it at the peer as well."""

    def __init__(
        self, upstream: httpx.Response, peer: Peer, trace: Trace, ended: Callable[["ForwardedResponse"], None]
    ) -> None:
        self.upstream = upstream
        self.peer = peer
        self.trace = trace
        self.status_code = upstream.status_code
        self.background = None
        self._ended = ended
        self._stop = asyncio.get_running_loop().create_future()

    def shut_down(self) -> None:
        """End with the error event server_shutdown."""
        if not self._stop.done():
            self._stop.set_result(None)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.trace.forwarded_to = self.peer.ordinal
        gone = asyncio.ensure_future(client_gone(receive))
        try:
            await self._pass_on(scope, send, gone)
        except Stalled:
            self.trace.outcome = "write_timeout"
        finally:
            gone.cancel()
            self._ended(self)
            await self.upstream.aclose()

    async def _pass_on(self, scope: Any, send: Any, gone: asyncio.Future[None]) -> None:
        found = self.upstream.headers
        passed = [name for name in (*PASSED_BACK, "content-length") if name in found]
        headers = [(name.encode(), found[name].encode()) for name in passed]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        try:
            async for chunk in _until(self.upstream.aiter_raw(), gone, self._stop):
                await send_or_stall(scope, send, {"type": "http.response.body", "body": chunk, "more_body": True})
        except httpx.HTTPError as error:
            await self._broken(scope, send, unreachable(self.peer, f"its reply broke off: {error}"))
            return
        if gone.done():
            self.trace.outcome = "disconnect"
        elif self._stop.done():
            failure = Failure("server_shutdown", "This pod is shutting down; send the turn again.")
            await self._broken(scope, send, failure)
        else:
            await send_or_stall(scope, send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _broken(self, scope: Any, send: Any, failure: Failure) -> None:
        """A stream ends with an error event; a JSON body that broke off can only be cut."""
        self.trace.outcome = failure.code
        if not self.upstream.headers.get("content-type", "").startswith("text/event-stream"):
            raise ConnectionError(failure.message)
        end = to_json(failure.body())
        message = {"type": "http.response.body", "body": b"data: " + end + b"\n\ndata: [DONE]\n\n", "more_body": False}
        await send_or_stall(scope, send, message)


async def client_gone(receive: Any) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _until(chunks: AsyncIterator[bytes], *ends: asyncio.Future[None]) -> AsyncIterator[bytes]:
    while True:
        step: asyncio.Future[bytes] = asyncio.ensure_future(anext(chunks))
        watched: set[asyncio.Future[Any]] = {step, *ends}
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if not step.done():
            step.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError, StopAsyncIteration):
                await step
            return
        try:
            yield step.result()
        except StopAsyncIteration:
            return
