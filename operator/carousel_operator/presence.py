"""Two operators by mistake: each writes its name into one Lease at its start, and says so when it finds another's.

No renewals: at rest the Lease is only read. The one that was started first notices.
"""

import asyncio
import logging

from carousel_operator import kinds, names
from carousel_operator.api import Api, ApiError
from carousel_operator.metrics import Metrics

log = logging.getLogger("carousel.operator")

LOOK_SECONDS = 60.0


class Presence:
    """This operator's name in the Lease of its namespace."""

    def __init__(
        self, api: Api, metrics: Metrics, namespace: str, identity: str, *, look: float = LOOK_SECONDS
    ) -> None:
        self._api, self._metrics = api, metrics
        self._namespace, self._identity, self._look = namespace, identity, look

    async def watch(self) -> None:
        """Write the name once, then look now and then. Ends only when cancelled."""
        written = False
        while True:
            try:
                if not written:
                    await self._write()
                    written = True
                await self.check()
            except ApiError as error:
                if error.status in (403, 404):
                    log.warning("cannot tell whether another operator runs: %s", error)
                    await asyncio.Event().wait()
                log.warning("presence: %s", error)
            await asyncio.sleep(self._look)

    async def check(self) -> str:
        """The name of another operator, or ""."""
        lease = await self._api.get(kinds.LEASE, self._namespace, names.FIELD_MANAGER)
        holder: str = ((lease or {}).get("spec") or {}).get("holderIdentity", self._identity)
        other = "" if holder == self._identity else holder
        self._metrics.others.set(1 if other else 0)
        if other:
            log.error("another operator, %s, has started and writes the same objects; stop one of them", other)
        return other

    async def _write(self) -> None:
        body = {
            "apiVersion": kinds.LEASE.api_version,
            "kind": kinds.LEASE.kind,
            "metadata": {"name": names.FIELD_MANAGER, "namespace": self._namespace},
            "spec": {"holderIdentity": self._identity},
        }
        await self._api.apply(kinds.LEASE, body)
