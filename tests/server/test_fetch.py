"""Downloads from a small hub that speaks the same protocol: interrupted, damaged, gated, redirected, offline."""

import hashlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from carousel_server import fetch_cli
from carousel_server.admin_state import AdminState
from carousel_server.auth import AdminToken
from carousel_server.hub import Hub, HubError, complete, parse_listing

WEIGHTS = bytes(range(256)) * 8192  # 2 MiB
CONFIG = b'{"model_type": "qwen4_exp"}'
COMMIT = "c0ffee" * 6 + "c0ff"


class FakeHub:
    """A hub and, on another port, the storage that large files are redirected to."""

    def __init__(self) -> None:
        self.files = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "README.md": b"no", "onnx/a.json": b"{}"}
        self.cut_after: list[int] = []  # bytes after which the next answers of the weights break off
        self.status: list[int] = []  # statuses of the next answers of the API
        self.token = ""
        self.damage = 0  # how many times the weights come damaged
        self.requests: list[tuple[str, str, str]] = []  # path, Range, Authorization
        self.storage = self._serve(self._store)
        self.hub = self._serve(self._answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.hub.server_address[1]}"

    def close(self) -> None:
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()

    def _serve(self, answer: Any) -> ThreadingHTTPServer:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = (self.path, self.headers.get("Range", ""), self.headers.get("Authorization", ""))
                fake.requests.append(asked)
                answer(self, *asked)

            def log_message(self, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def _answer(self, to: BaseHTTPRequestHandler, path: str, span: str, authorization: str) -> None:
        if self.token and authorization != f"Bearer {self.token}":
            return self._send(to, 401, b"")
        if self.status:
            return self._send(to, self.status.pop(0), b"")
        if path == "/api/models/owner/model/revision/refs%2Fpr%2F1?blobs=true":
            return self._send(to, 200, json.dumps(self.listing()).encode())
        if path == f"/owner/model/resolve/{COMMIT}/config.json":
            return self._send(to, 200, self.files["config.json"])
        if path == f"/owner/model/resolve/{COMMIT}/model.safetensors":
            to.send_response(302)
            to.send_header("Location", f"http://localhost:{self.storage.server_address[1]}/blob")
            to.send_header("Content-Length", "0")
            return to.end_headers()
        return self._send(to, 404, b"")

    def _store(self, to: BaseHTTPRequestHandler, path: str, span: str, authorization: str) -> None:
        start = int(span.removeprefix("bytes=").removesuffix("-") or 0) if span else 0
        body = self.files["model.safetensors"][start:]
        if self.damage:
            self.damage -= 1
            body = b"\xff" + body[1:]
        self._send(to, 206 if start else 200, body, self.cut_after.pop(0) if self.cut_after else None)

    def _send(self, to: BaseHTTPRequestHandler, status: int, body: bytes, cut: int | None = None) -> None:
        to.send_response(status)
        to.send_header("Content-Length", str(len(body)))
        to.end_headers()
        to.wfile.write(body[:cut])
        if cut is not None:
            to.close_connection = True
            to.connection.close()

    def listing(self) -> dict[str, Any]:
        def entry(name: str, body: bytes) -> dict[str, Any]:
            if name.endswith(".safetensors"):
                return {"rfilename": name, "lfs": {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}}
            blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
            return {"rfilename": name, "size": len(body), "blobId": blob}

        return {"sha": COMMIT, "siblings": [entry(*item) for item in self.files.items()]}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    found = FakeHub()
    yield found
    found.close()


def fetch(hub: FakeHub, folder: Path, token: str = "", naps: list[float] | None = None) -> list[tuple[int, int]]:
    """Download everything without real waits; what the progress was told."""
    told: list[tuple[int, int]] = []
    sleep = (naps if naps is not None else []).append
    client = Hub(hub.url, "owner/model", "refs/pr/1", token, sleep=sleep)
    client.download(client.listing(), folder, lambda done, total, name: told.append((done, total)))
    return told


def test_a_download_brings_the_checkpoint_and_nothing_else(hub: FakeHub, tmp_path: Path) -> None:
    told = fetch(hub, tmp_path / "m")
    assert {p.name for p in (tmp_path / "m").iterdir()} == {
        "config.json",
        "model.safetensors",
        ".carousel-complete.json",
    }
    assert (tmp_path / "m/model.safetensors").read_bytes() == WEIGHTS
    assert told[-1] == (len(WEIGHTS) + len(CONFIG), len(WEIGHTS) + len(CONFIG))


def test_a_complete_download_asks_nobody_again(hub: FakeHub, tmp_path: Path) -> None:
    fetch(hub, tmp_path)
    assert complete(tmp_path, "owner/model", "refs/pr/1")
    assert not complete(tmp_path, "owner/model", "main")
    (tmp_path / "model.safetensors").write_bytes(WEIGHTS[:-1])
    assert not complete(tmp_path, "owner/model", "refs/pr/1")


def test_a_broken_connection_goes_on_where_it_stopped(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_after = [700_000, 500_000]
    fetch(hub, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert [span for path, span, _ in hub.requests if path == "/blob"] == ["", "bytes=700000-", "bytes=1200000-"]


def test_a_killed_download_goes_on_in_the_next_container(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.part").write_bytes(WEIGHTS[:1_000_000])
    fetch(hub, tmp_path)
    assert ("/blob", "bytes=1000000-", "") in hub.requests
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_damaged_file_is_thrown_away_and_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.damage = 1
    fetch(hub, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert [span for path, span, _ in hub.requests if path == "/blob"] == ["", ""]


def test_busy_answers_are_waited_for_with_growing_pauses(hub: FakeHub, tmp_path: Path) -> None:
    hub.status = [503, 429, 500]
    naps: list[float] = []
    fetch(hub, tmp_path, naps=naps)
    assert naps[:3] == [1.0, 2.0, 4.0]


def test_a_hub_that_cannot_be_reached_says_what_to_do(tmp_path: Path) -> None:
    naps: list[float] = []
    with pytest.raises(HubError, match=r"cannot be reached.*HF_ENDPOINT.*model\.source\.pvc"):
        Hub("http://127.0.0.1:9", "owner/model", "main", sleep=naps.append).listing()
    assert sum(naps) == 1 + 2 + 4 + 8 + 16 + 30 + 30


def test_a_gated_repository_asks_for_a_token_and_takes_it(hub: FakeHub, tmp_path: Path) -> None:
    hub.token = "secret"
    with pytest.raises(HubError, match=r"401.*tokenSecretRef"):
        fetch(hub, tmp_path)
    fetch(hub, tmp_path, token="secret")
    assert complete(tmp_path, "owner/model", "refs/pr/1")


def test_the_token_is_not_sent_to_the_storage_behind_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    hub.token = "secret"
    fetch(hub, tmp_path, token="secret")
    assert {authorization for path, _, authorization in hub.requests if path == "/blob"} == {""}


def test_a_repository_that_does_not_exist_is_named(hub: FakeHub) -> None:
    with pytest.raises(HubError, match=r"has no owner/other at revision main"):
        Hub(hub.url, "owner/other", "main").listing()


def test_a_repository_without_a_config_is_no_checkpoint() -> None:
    with pytest.raises(HubError, match=r"no config\.json"):
        parse_listing({"sha": "x", "siblings": [{"rfilename": "a.txt", "size": 1}]})


def test_an_answer_that_is_no_listing_is_refused() -> None:
    with pytest.raises(HubError, match="cannot be read"):
        parse_listing({"error": "x"})


def test_too_little_space_is_said_before_the_first_byte(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carousel_server.hub.shutil.disk_usage", lambda path: type("U", (), {"free": 1000})())
    with pytest.raises(HubError, match=r"needs 2 MiB more .* 1000 B free: enlarge the cache"):
        fetch(hub, tmp_path)
    assert not [path for path, _, _ in hub.requests if path == "/blob"]


def test_a_cache_that_cannot_be_written_is_said(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HubError, match="needs a writable cache"):
        fetch(hub, tmp_path / "file/folder")


def test_the_command_ends_with_0_or_66(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--repo", "owner/model", "--revision", "refs/pr/1", "--dest", str(tmp_path), "--endpoint", hub.url]
    assert fetch_cli.main(arguments) == 0
    asked = len(hub.requests)
    assert fetch_cli.main(arguments) == 0
    assert len(hub.requests) == asked
    arguments[1] = "owner/other"
    assert fetch_cli.main(arguments) == 66
    assert "owner/other" in capsys.readouterr().err


def test_the_operator_reads_the_progress_on_the_admin_port_with_its_token_only(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    report = fetch_cli.Report("owner/model")
    report(43, 100, "model.safetensors")
    server = fetch_cli.serve_state(report, 0, AdminToken(tmp_path / "token"))
    url = f"http://127.0.0.1:{server.server_address[1]}/admin/state"
    try:
        request = urllib.request.Request(url, headers={"Authorization": "Bearer secret"})
        state = AdminState.model_validate_json(urllib.request.urlopen(request).read())
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url)
    finally:
        server.shutdown()
        server.server_close()
    assert (state.phase, state.progress) == ("loading", 0.43)
    assert state.message == "downloading owner/model: 43% (43 B of 100 B)"
