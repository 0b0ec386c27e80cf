"""Which requests another pod answers, and which pod that is. Decides; peers.py does the sending."""

import asyncio
from typing import TYPE_CHECKING, Any

import httpx

from carousel_server.admin_state import Peer
from carousel_server.auth import AdminToken
from carousel_server.body import Disconnected
from carousel_server.failure import Failure
from carousel_server.identity import Elsewhere, Unreachable
from carousel_server.peers import ForwardedResponse, Forwarder, client_gone
from carousel_server.stage import Core

if TYPE_CHECKING:
    from carousel_server.routes import Call


class Hop:
    """See the module. A forwarded request is never sent on."""

    def __init__(self, forwarder: Forwarder, token: AdminToken) -> None:
        self._forwarder = forwarder
        self._token = token
        self.open: set[ForwardedResponse] = set()  # replies that are being passed back
        self._over = False
        self._waiting: set[asyncio.Future[None]] = set()  # one for each request whose reply has not begun

    @property
    def passing(self) -> int:
        """Requests that are on their way to another pod or back."""
        return len(self.open) + len(self._waiting)

    def shut_down(self) -> None:
        """End every reply that is being passed back with its last event, and begin no other."""
        self._over = True
        for ended in self._waiting:
            if not ended.done():
                ended.set_result(None)
        for response in list(self.open):
            response.shut_down()

    async def for_session(self, core: Core, call: "Call", session_id: str | None) -> ForwardedResponse | None:
        """The reply of the pod that answers for this session, or for new work while draining; None: this pod does.

        Raises Failure owner_unreachable. What is wrong with an id of this pod is the core's to say.
        """
        if call.forwarded is not None:
            return None
        if session_id is None:
            if not core.draining:
                return None
            peer = next((peer for peer in core.peers if peer.accepting and peer.ordinal != core.ordinal), None)
            return None if peer is None else await self._send(peer, call)
        verdict = core.judge(session_id)
        if isinstance(verdict, Elsewhere):
            return await self._send(verdict.peer, call)
        if isinstance(verdict, Unreachable):
            raise Failure(
                "owner_unreachable",
                f"The session belongs to pod {verdict.ordinal}, which is not among this pod's peers; retry: it may "
                "still be there.",
                retry_after=2.0,
            )
        return None

    async def for_request(self, core: Core, call: "Call", request_id: str) -> ForwardedResponse | None:
        """The reply of the pod that has this request; an id that a client chose is asked for at every peer once."""
        if call.forwarded is not None:
            return None
        verdict = core.judge(request_id)
        if isinstance(verdict, Elsewhere):
            return await self._send(verdict.peer, call)
        if verdict != "unknown":
            return None
        peers = [peer for peer in core.peers if peer.ordinal != core.ordinal]
        replies = await asyncio.gather(*(self._open(peer, call) for peer in peers), return_exceptions=True)
        error: BaseException | None = None
        begun: list[tuple[httpx.Response, Peer]] = []
        for peer, reply in zip(peers, replies, strict=True):
            if not isinstance(reply, BaseException):
                begun.append((reply, peer))
            elif error is None and not (isinstance(reply, Failure) and reply.code == "owner_unreachable"):
                error = reply
        chosen = None if error is not None else next((pair for pair in begun if pair[0].status_code != 404), None)
        for pair in begun:
            if pair is not chosen:
                await pair[0].aclose()
        if error is not None:
            raise error
        return None if chosen is None else self._response(*chosen, call)

    async def _send(self, peer: Peer, call: "Call") -> ForwardedResponse:
        return self._response(await self._open(peer, call), peer, call)

    def _response(self, reply: httpx.Response, peer: Peer, call: "Call") -> ForwardedResponse:
        response = ForwardedResponse(reply, peer, call.trace, self.open.discard)
        self.open.add(response)
        if self._over:  # it began in the moment in which the others were told
            response.shut_down()
        return response

    async def _open(self, peer: Peer, call: "Call") -> httpx.Response:
        """The peer's reply once it begins; nobody waits for it longer than the client does."""
        if self._over:
            raise _shutting_down()
        gone = asyncio.ensure_future(client_gone(call.request.receive))
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(ended)
        opening = asyncio.ensure_future(
            self._forwarder.open(
                peer,
                self._token.read(),
                method=call.request.method,
                path=call.path,
                key=call.key,
                body=call.body,
                headers=call.request.headers,
            )
        )
        try:
            watched: set[asyncio.Future[Any]] = {gone, ended, opening}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                return opening.result()
            if ended.done():
                raise _shutting_down()
            raise Disconnected
        finally:
            self._waiting.discard(ended)
            gone.cancel()
            if not opening.done():
                opening.cancel()


def _shutting_down() -> Failure:
    return Failure("server_shutdown", "This pod is shutting down; send the request again.")
