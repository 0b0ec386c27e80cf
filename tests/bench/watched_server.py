"""`carousel-server` with a watch on its event loop: how late a timer is while the worker has requests.

    python -m tests.bench.watched_server FILE serve ...

At its end the server leaves in FILE a list of [monotonic seconds, seconds late].
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from carousel_server import server
from carousel_server.__main__ import main

EVERY = 0.005


class WatchedServer(server.Server):
    """See the module."""

    target: Path

    async def run(self, announce: Callable[[str], None], *, signals: bool = True) -> int:
        late: list[tuple[float, float]] = []
        watch = asyncio.create_task(self._watch(late))
        try:
            return await super().run(announce, signals=signals)
        finally:
            watch.cancel()
            self.target.write_text(json.dumps(late))

    async def _watch(self, late: list[tuple[float, float]]) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(EVERY)
            now = time.monotonic()
            if self.service is not None and self.service.core.running:
                late.append((now, max(0.0, now - began - EVERY)))


if __name__ == "__main__":
    WatchedServer.target = Path(sys.argv[1])
    server.Server = WatchedServer  # type: ignore[misc]
    sys.exit(main(sys.argv[2:]))
