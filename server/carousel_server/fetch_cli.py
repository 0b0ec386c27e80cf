"""`carousel-server fetch`: fill a folder with a model from the hub. What the init container of a pod runs.

While it downloads it answers `GET /admin/state` on the admin port as a loading server does, so the operator shows its
progress without a second protocol.
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from carousel_server import __version__
from carousel_server.admin_state import AdminState, RequestCounts, SessionCounts
from carousel_server.auth import AdminToken
from carousel_server.failure import Failure
from carousel_server.hub import Hub, HubError, complete
from carousel_server.limits import Limits
from carousel_server.units import human_bytes

MODEL_MISSING = 66
ENDPOINT = "https://huggingface.co"
SAY_EVERY = 10.0  # seconds between two lines of the log


class Report:
    """How far the download is: a line now and then, and the state for the admin port."""

    def __init__(self, repo: str) -> None:
        self.repo = repo
        self.done, self.total = 0, 0
        self._started = time.monotonic()
        self._first: float | None = None  # when the first bytes were counted, and how many were there before
        self._from = 0
        self._said = 0.0

    def __call__(self, done: int, total: int, name: str) -> None:
        """The Progress of hub.py."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._from = now, done
        self.done, self.total = done, total
        if now - self._said >= SAY_EVERY:
            self._said = now
            rate = (done - self._from) / max(now - self._first, 1e-3)
            print(f"fetch: {self.message}, {human_bytes(rate)}/s", flush=True)

    @property
    def message(self) -> str:
        """For people."""
        if not self.total:
            return f"asking for {self.repo}"
        share = 100 * self.done // self.total
        return f"downloading {self.repo}: {share}% ({human_bytes(self.done)} of {human_bytes(self.total)})"

    def state(self) -> AdminState:
        """A server that loads and holds nothing."""
        return AdminState(
            version=__version__,
            boot_id="",
            ordinal=0,
            phase="loading",
            progress=self.done / self.total if self.total else 0.0,
            message=self.message,
            uptime_seconds=time.monotonic() - self._started,
            sessions=SessionCounts(active=0, in_flight=0, capacity=0),
            requests=RequestCounts(queued=0, running=0),
            reserved_bytes=0,
            limits=Limits(),
            limits_generation=0,
            peers_generation=0,
            plan_digest="",
            plan_host_bytes=0,
            plan_gpu_bytes=0,
        )


def serve_state(report: Report, port: int, token: AdminToken) -> ThreadingHTTPServer:
    """Answers on the admin port in a thread of its own; a call without the token gets 401."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = 404, b"{}"
            if self.path == "/admin/state":
                try:
                    token.check(self.headers.get("Authorization"))
                    status, body = 200, report.state().model_dump_json(by_alias=True).encode()
                except Failure as failure:
                    status, body = failure.status, json.dumps(failure.body()).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: a line for each poll would drown the progress."""

    server = ThreadingHTTPServer(("", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main(argv: Sequence[str]) -> int:
    """0 when the folder holds the whole model; 66, with the reason, when it cannot."""
    parser = argparse.ArgumentParser(prog="carousel-server fetch", description=__doc__, allow_abbrev=False)
    parser.add_argument("--repo", required=True, help="owner/name")
    parser.add_argument("--revision", required=True, help="branch, tag or commit")
    parser.add_argument("--dest", required=True, type=Path, help="folder to fill")
    parser.add_argument("--endpoint", default=os.environ.get("HF_ENDPOINT") or ENDPOINT, help="default: %(default)s")
    parser.add_argument("--token-file", type=Path, help="file with a token for gated repositories")
    parser.add_argument("--admin-port", type=int, help="answer GET /admin/state here while downloading")
    parser.add_argument("--admin-token", type=Path, default=Path("/var/run/carousel/admin/token"))
    options = parser.parse_args(list(argv))
    if complete(options.dest, options.repo, options.revision):
        print(f"fetch: {options.repo} at {options.revision} is complete in {options.dest}", flush=True)
        return 0
    report = Report(options.repo)
    server = None
    try:
        token = options.token_file.read_text().strip() if options.token_file else ""
        if options.admin_port is not None:
            server = serve_state(report, options.admin_port, AdminToken(options.admin_token))
        hub = Hub(options.endpoint, options.repo, options.revision, token)
        hub.download(hub.listing(), options.dest, report)
    except (HubError, OSError) as error:
        print(f"carousel-server: {error}", file=sys.stderr, flush=True)
        return MODEL_MISSING
    finally:
        if server:
            server.shutdown()
    print(f"fetch: {options.repo} at {options.revision} is complete in {options.dest}", flush=True)
    return 0
