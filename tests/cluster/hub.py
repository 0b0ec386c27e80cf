"""A Hugging Face Hub of one repository, for a pod of the server's image: `python3 hub.py`.

It serves the embedded model under any revision, slowly, and breaks off the first answers for the weights in the middle,
so that a download must go on where it stopped.
"""

import hashlib
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import carousel_server

REPO = "test/tiny"
COMMIT = "0" * 40
BREAKS = 2  # answers that end in the middle
PIECE, PAUSE = 2**17, float(os.environ.get("PAUSE", "0"))


class Hub(ThreadingHTTPServer):
    """Files, and how many answers are still to be broken off."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(("", port), Handler)
        self.files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.breaks = BREAKS


class Handler(BaseHTTPRequestHandler):
    """The two paths that a download asks for."""

    server: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{REPO}/revision/"):
            self._send(200, json.dumps(self._listing()).encode())
        elif path.startswith(f"/{REPO}/resolve/{COMMIT}/") and path.rpartition("/")[2] in self.server.files:
            self._file(path.rpartition("/")[2])
        else:
            self._send(404, b"{}")

    def _listing(self) -> dict[str, object]:
        siblings: list[dict[str, object]] = []
        for name, body in self.server.files.items():
            large = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
            siblings.append({"rfilename": name, "size": len(body), "lfs": large})
        return {"sha": COMMIT, "siblings": siblings}

    def _file(self, name: str) -> None:
        span = self.headers.get("Range", "")
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span else 0
        body = self.server.files[name][start:]
        keep = len(body)
        if name.endswith(".safetensors") and self.server.breaks:
            self.server.breaks -= 1
            keep = len(body) // 2
        print(f"{name} from {start}: {keep} of {len(body)} bytes", flush=True)
        self._send(206 if start else 200, body, keep)

    def _send(self, status: int, body: bytes, keep: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        kept = body[:keep]
        for at in range(0, len(kept), PIECE):
            self.wfile.write(kept[at : at + PIECE])
            time.sleep(PAUSE)
        self.close_connection = len(kept) < len(body)


if __name__ == "__main__":
    Hub(Path(carousel_server.__file__).parent / "embedded", 8080).serve_forever()
