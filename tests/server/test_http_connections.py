"""API keys that change under way, and connections that mean no good."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from carousel_server.auth import ApiKeys
from carousel_server.failure import Failure

from tests.server.http_kit import Running, running, wait_for


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    with running(settings={"engine.headerTimeout": "600ms", "limits.socketTimeout": "600ms"}) as found:
        yield found
        found.idle()


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"POST /v1/chat", b"POST / HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_never_ends_gets_408(hasty: Running, sent: bytes) -> None:
    with hasty.connect() as sock:
        sock.sendall(sent)
        began = time.monotonic()
        assert sock.recv(65536).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began < 10
        assert sock.recv(65536) == b""


def test_a_head_that_drips_is_not_given_more_time(hasty: Running) -> None:
    with hasty.connect() as sock:
        began = time.monotonic()
        sock.sendall(b"GET /health HTTP/1.1\r\n")
        reply = b""
        sock.settimeout(0.2)
        while not reply and time.monotonic() - began < 10:
            try:
                sock.sendall(b"x: y\r\n")
                reply = sock.recv(65536)
            except TimeoutError:
                continue
        assert reply.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_stands_still_gets_408(hasty: Running) -> None:
    with hasty.connect() as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        reply = sock.recv(65536)
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b"request_timeout" in reply


def test_a_kept_connection_may_rest_longer_than_a_head(hasty: Running) -> None:
    with hasty.connect() as sock:
        for _ in range(2):
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
            time.sleep(1)


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000, b"GET /" + b"z" * 100_000])
def test_a_head_over_64_kib_gets_431(server: Running, head: bytes) -> None:
    with server.connect() as sock:
        sock.sendall(head)
        assert sock.recv(65536).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_not_http_gets_400_as_json(server: Running, junk: bytes) -> None:
    with server.connect() as sock:
        sock.sendall(junk)
        reply = sock.recv(65536)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_request"' in reply


def test_two_requests_on_one_line_are_answered_in_order(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(
            b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        found = b""
        while chunk := sock.recv(65536):
            found += chunk
    assert found.index(b'"status":"serving"') < found.index(b'"object":"list"')


def test_keys_are_added_and_removed_without_a_restart(tmp_path: Path) -> None:
    (tmp_path / "alice").write_text("key-a\n")
    (tmp_path / "..data").mkdir()
    (tmp_path / "empty").write_text("")
    with running(api_keys=tmp_path) as server:

        def status(key: str | None) -> int:
            return server.http.get("/v1/models", headers={"authorization": f"Bearer {key}"} if key else {}).status_code

        assert (status("key-a"), status("key-b"), status(None), status("")) == (200, 401, 401, 401)
        assert server.http.get("/v1/models").headers["www-authenticate"] == "Bearer"
        for path in ("/health", "/metrics", "/"):
            assert server.http.get(path).status_code == 200
        (tmp_path / "bob").write_text("key-b")
        (tmp_path / "alice").unlink()
        wait_for(lambda: (status("key-a"), status("key-b")) == (401, 200), 10)


def test_an_unknown_key_is_refused_before_its_body_is_read(tmp_path: Path) -> None:
    with running(api_keys=tmp_path) as server, server.connect() as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_keys_are_names_for_contents(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("k1")
    keys = ApiKeys(tmp_path)
    assert keys.name_of("Bearer k1", now=0.0) == "one"
    assert keys.name_of("bearer  k1", now=0.0) == "one"
    for wrong in (None, "", "k1", "Basic k1", "Bearer", "Bearer K1", "Bearer k1 k1", "Bearer \udcff"):
        with pytest.raises(Failure):
            keys.name_of(wrong, now=0.0)
    (tmp_path / "one").unlink()
    assert keys.name_of("Bearer k1", now=1.0) == "one"
    with pytest.raises(Failure):
        keys.name_of("Bearer k1", now=3.0)
    assert ApiKeys(None).name_of(None, now=0.0) == ""
