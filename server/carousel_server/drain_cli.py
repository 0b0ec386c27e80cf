"""`carousel-server drain`: stop new work on the server of this pod and, with --wait, until its requests have ended.

What preStop runs: routers go on sending for some seconds after a pod is told to end, so it waits at least 5 s.
Light on purpose: it imports no web framework.
"""

import argparse
import http.client
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from carousel_server.units import format_duration, parse_duration

ENDPOINT_SECONDS = 5.0
POLL_SECONDS = 0.25
ADMIN_TOKEN = "/var/run/carousel/admin/token"


class Unreachable(Exception):
    """No server answers on the admin port: there is nothing to wait for."""


def ask(port: int, token: str, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One call of the admin port. Raises Unreachable, or RuntimeError with the server's own words."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"authorization": f"Bearer {token}"})
        reply = connection.getresponse()
        found = json.loads(reply.read())
    except OSError as error:
        raise Unreachable(f"no server answers on admin port {port}: {error}") from None
    finally:
        connection.close()
    if reply.status >= 400:
        raise RuntimeError(f"{reply.status}: {found['error']['message']}")
    return dict(found)


def drain(
    call: Callable[[str, str, dict[str, Any] | None], dict[str, Any]],
    *,
    timeout: float,
    wait: bool,
    at_least: float = ENDPOINT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Start a drain unless there is one, whose reason and deadline stay. Returns the requests that are left.

    Replies of other pods that pass through this one count: they would break off with it.
    """
    began = clock()
    state = call("GET", "/admin/state", None)
    if state["drain"] is None:
        call("POST", "/admin/drain", {"reason": "eviction", "remainingSeconds": timeout, "idleGraceSeconds": 0})
    while True:
        requests = state["requests"]
        left = int(requests["queued"] + requests["running"] + requests["forwarded"])
        waited = clock() - began
        if not wait or waited >= timeout or (not left and waited >= at_least):
            return left
        sleep(POLL_SECONDS)
        state = call("GET", "/admin/state", None)


def main(argv: Sequence[str]) -> int:
    """Exit code 0 unless the server refuses; a server that is gone is drained."""
    parser = argparse.ArgumentParser(prog="carousel-server drain", description=__doc__.splitlines()[0])
    parser.add_argument("--wait", action="store_true", help="until no request runs or waits, at least 5s")
    parser.add_argument(
        "--timeout", default="125s", metavar="DURATION", help="and at most this long (default: %(default)s)"
    )
    parser.add_argument("--admin-port", type=int, default=8001, help="default: %(default)s")
    parser.add_argument("--admin-token", type=Path, default=Path(ADMIN_TOKEN), help="default: %(default)s")
    options = parser.parse_args(list(argv))
    try:
        timeout = parse_duration(options.timeout)
        token = options.admin_token.read_text().strip()
    except (ValueError, OSError) as error:
        print(f"carousel-server drain: {error}", file=sys.stderr)
        return 64
    try:
        left = drain(
            lambda method, path, body: ask(options.admin_port, token, method, path, body),
            timeout=timeout,
            wait=options.wait,
        )
    except Unreachable as error:
        print(f"carousel-server drain: {error}", file=sys.stderr)
        return 0
    except RuntimeError as error:
        print(f"carousel-server drain: the server refused: {error}", file=sys.stderr)
        return 1
    if options.wait and left:
        print(f"carousel-server drain: {left} requests are left after {format_duration(timeout)}", file=sys.stderr)
    return 0
