"""Requests that another pod answers: whose they are, how they travel, and that nobody can forge or loop them."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from carousel_server import drain_cli
from carousel_server.peers import HEADER, sign, verify

from tests.server.http_kit import TOKEN, Running, begin, chat_body, events_of, running, script, text_of, wait_for

ZERO = "0" * 48


def peer(server: Running, ordinal: int, *, accepting: bool = True) -> dict[str, Any]:
    return {"ordinal": ordinal, "address": server.address, "bootId": server.boot_id, "accepting": accepting}


def tell(
    server: Running, generation: int, peers: list[dict[str, Any]], lost: list[dict[str, Any]] | None = None
) -> None:
    update = {"generation": generation, "peers": peers, "lost": lost or []}
    assert server.admin.put("/admin/peers", json=update).status_code == 200


@contextmanager
def pods(count: int = 2, **settings: Any) -> Iterator[list[Running]]:
    with ExitStack() as stack:
        found = [stack.enter_context(running(ordinal=n, access_log=True, **settings)) for n in range(count)]
        for server in found:
            tell(server, 1, [peer(other, n) for n, other in enumerate(found)])
        yield found
        for server in found:
            server.idle()


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Running]]:
    with pods() as found:
        yield found


def test_a_session_is_answered_by_its_owner_through_any_pod(pair: list[Running]) -> None:
    owner, other = pair
    session = owner.session()
    for stream in (False, True):
        reply = other.chat(script("from ", "afar"), session_id=session, stream=stream)
        assert reply.status_code == 200, reply.text
        if stream:
            assert reply.headers["content-type"].startswith("text/event-stream")
            assert text_of(events_of(reply.text)) == "from afar"
        else:
            assert reply.json()["choices"][0]["message"]["content"] == "from afar"
            assert reply.json()["session_id"] == session
    assert other.http.get(f"/v1/sessions/{session}").json()["turns"] == 2
    assert other.http.delete(f"/v1/sessions/{session}").json()["deleted"] is True
    assert owner.http.get(f"/v1/sessions/{session}").json()["error"]["code"] == "session_expired"
    assert other.http.get(f"/v1/sessions/{session}").json()["error"]["code"] == "session_expired"


def test_errors_and_request_ids_travel_back(pair: list[Running]) -> None:
    owner, other = pair
    session = owner.session()
    reply = other.http.post(
        "/v1/chat/completions",
        json=chat_body(session_id=session, temprature=1),
        headers={"x-request-id": "corr-7"},
    )
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "temprature")
    reply = other.http.post(
        "/v1/chat/completions", json=chat_body(session_id=session), headers={"x-request-id": "corr-8"}
    )
    assert reply.headers["x-request-id"] == "corr-8"


def test_a_forwarded_stream_comes_as_it_is_made(pair: list[Running]) -> None:
    owner, other = pair
    session = owner.session()
    body = chat_body(script("a", "b", delay_ms=600), session_id=session, stream=True)
    began = time.monotonic()
    with other.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = reply.iter_lines()
        while '"content":"a"' not in next(lines):
            pass
        first = time.monotonic() - began
        text = "\n".join(lines)
    assert time.monotonic() - began - first > 0.5
    assert text.endswith("data: [DONE]\n")


def test_a_pod_that_is_told_to_end_waits_for_what_it_forwards(pair: list[Running], tmp_path: Path) -> None:
    owner, other = pair
    (token := tmp_path / "token").write_text(TOKEN)
    body = chat_body(script("a", then="stall"), session_id=owner.session(), stream=True)
    call = ["--wait", "--timeout", "30s", "--admin-port", str(other.admin_port), "--admin-token", str(token)]
    with other.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        begin(reply)
        assert other.admin.get("/admin/state").json()["requests"] == {"queued": 0, "running": 0, "forwarded": 1}
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(drain_cli.main, call)
            wait_for(lambda: other.admin.get("/admin/state").json()["drain"])
            time.sleep(0.5)
            assert not waiting.done()
            reply.close()
            assert waiting.result(20) == 0
    wait_for(lambda: other.admin.get("/admin/state").json()["requests"]["forwarded"] == 0)
    other.admin.delete("/admin/drain")


def test_cancel_reaches_the_owner_by_its_id_and_by_a_clients_id(pair: list[Running]) -> None:
    owner, other = pair
    session = owner.session()
    for request_id in ("mine", None):
        body = chat_body(script("x", then="stall"), session_id=session, stream=True, request_id=request_id)
        with owner.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = begin(reply)
            listed = wait_for(lambda: owner.http.get("/v1/requests").json()["data"])
            assert other.http.get("/v1/requests").json()["data"] == []
            cancelled = other.http.post(f"/v1/requests/{listed[0]['id']}/cancel")
            assert cancelled.status_code == 200, cancelled.text
            assert events_of("\n".join(lines))[-1]["error"]["code"] == "cancelled"
        owner.idle()
    assert other.http.post("/v1/requests/nobodys/cancel").status_code == 404


def test_a_client_that_leaves_the_forwarding_pod_is_gone_for_the_owner(pair: list[Running]) -> None:
    owner, other = pair
    for stream in (True, False):
        session = owner.session()
        body = chat_body(script("x", then="stall"), session_id=session, stream=stream)
        with other.connect() as sock:
            content = json.dumps(body).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
            sock.sendall(head.encode() + content)
            wait_for(lambda: owner.state()["requests"]["running"] == 1)
        owner.idle(10)
        other.idle()
        assert owner.http.get(f"/v1/sessions/{session}").json()["turns"] == 0


def test_new_work_goes_to_a_peer_that_accepts_while_draining() -> None:
    with pods(3) as (first, second, third):
        tell(first, 2, [peer(second, 1, accepting=False), peer(third, 2)])
        kept = first.session()
        first.admin.post("/admin/drain", json={"reason": "rollout", "remainingSeconds": 60, "idleGraceSeconds": 5})
        assert first.chat(script("moved")).json()["id"].startswith("2.")
        reply = first.http.post("/v1/sessions", json={})
        assert (reply.status_code, reply.json()["id"][:2]) == (201, "2.")
        assert first.chat(session_id=reply.json()["id"]).status_code == 200
        assert first.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).json()["id"].startswith("2.")
        assert first.chat(session_id=kept).json()["id"].startswith("0.")
        third.admin.post("/admin/drain", json={"reason": "rollout", "remainingSeconds": 60, "idleGraceSeconds": 5})
        refused = first.chat()  # the table still says that it accepts: one hop, and no further
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        tell(first, 3, [peer(second, 1, accepting=False)])
        assert first.chat().json()["error"]["code"] == "draining"


def test_a_loop_in_the_tables_ends_after_one_hop() -> None:
    with pods(2) as (first, second):
        for generation, (server, other, ordinal) in enumerate([(first, second, 1), (second, first, 0)], 2):
            tell(server, generation, [peer(other, ordinal)])
            server.admin.post("/admin/drain", json={"reason": "rollout", "remainingSeconds": 60, "idleGraceSeconds": 5})
        began = time.monotonic()
        assert first.chat().json()["error"]["code"] == "draining"
        assert time.monotonic() - began < 20


def test_lost_needs_evidence(pair: list[Running]) -> None:
    owner, other = pair
    boot = "00112233aabbccdd"
    answer = other.chat(session_id=f"0.{boot}.{ZERO}")  # the owner answers, and runs another boot
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "session_lost")
    assert answer.json()["error"]["cause"] == "unknown"
    unknown = other.chat(session_id=f"7.{boot}.{ZERO}")  # nobody knows pod 7
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "owner_unreachable")
    assert int(unknown.headers["retry-after"]) >= 1
    lost = ({"ordinal": 7, "bootId": boot, "cause": "scale-down", "at": "2026-01-02T03:04:05Z"},)
    tell(other, 5, [peer(owner, 0), peer(other, 1)], lost)
    known = other.chat(session_id=f"7.{boot}.{ZERO}")
    assert known.status_code == 410
    assert known.json()["error"]["cause"] == "scale-down"
    assert known.json()["error"]["at"] == "2026-01-02T03:04:05Z"
    assert other.chat(session_id=f"0.{owner.boot_id}.{ZERO}").status_code == 404  # no pod made this one


def test_an_owner_that_does_not_answer_is_503_and_not_a_lost_session() -> None:
    with running(ordinal=1) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and never listening
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        tell(server, 1, [{"ordinal": 0, "address": address, "bootId": "00112233aabbccdd", "accepting": True}])
        reply = server.chat(session_id=f"0.00112233aabbccdd.{ZERO}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "owner_unreachable")


def test_an_owner_that_dies_in_a_stream_ends_it_with_an_error_event() -> None:
    with running(ordinal=1) as other:
        with running(ordinal=0) as owner:
            tell(owner, 1, [peer(owner, 0)])
            tell(other, 1, [peer(owner, 0), peer(other, 1)])
            session = owner.session()
            body = chat_body(script("x", then="stall"), session_id=session, stream=True)
            with other.http.stream("POST", "/v1/chat/completions", json=body) as reply:
                lines = begin(reply)
                owner.loop.call_soon_threadsafe(owner.server.ports[0].drop_everything)
                events = events_of("\n".join(lines))
            assert events[-1]["error"]["code"] == "owner_unreachable"
        other.idle()


def test_sessions_belong_to_their_key_on_every_pod(tmp_path: Path) -> None:
    (tmp_path / "alice").write_text("key-a\n")
    (tmp_path / "bob").write_text("key-b\n")
    alice, bob = {"authorization": "Bearer key-a"}, {"authorization": "Bearer key-b"}
    with pods(2, api_keys=tmp_path) as (owner, other):
        session = owner.http.post("/v1/sessions", json={}, headers=alice).json()["id"]
        for server in (owner, other):
            assert server.http.get(f"/v1/sessions/{session}", headers=alice).status_code == 200
            assert server.http.get(f"/v1/sessions/{session}", headers=bob).status_code == 404
            assert server.http.get(f"/v1/sessions/{session}").status_code == 401
        assert owner.http.get("/v1/sessions", headers=bob).json()["data"] == []
        body = chat_body(script("x", then="stall"), stream=True, request_id="alices")
        with owner.http.stream("POST", "/v1/chat/completions", json=body, headers=alice) as reply:
            lines = begin(reply)
            for server in (owner, other):
                assert server.http.post("/v1/requests/alices/cancel", headers=bob).status_code == 404
            assert other.http.post("/v1/requests/alices/cancel", headers=alice).status_code == 200
            assert "cancelled" in "\n".join(lines)


def test_a_forged_forwarding_header_is_worth_nothing(tmp_path: Path) -> None:
    (tmp_path / "alice").write_text("key-a")
    with running(api_keys=tmp_path) as server:
        session = server.http.post("/v1/sessions", json={}, headers={"authorization": "Bearer key-a"}).json()["id"]
        path = f"/v1/sessions/{session}"

        def get(token: bytes, target: int = 0, path_signed: str = path) -> httpx.Response:
            header = sign(
                token, target=target, method="GET", path=path_signed, key="alice", origin="f" * 16, nonce="1", body=b""
            )
            return server.http.get(path, headers={HEADER: header})

        assert get(TOKEN.encode()).status_code == 200
        assert get(b"guess").status_code == 401
        assert get(TOKEN.encode(), target=1).status_code == 401
        assert get(TOKEN.encode(), path_signed="/v1/sessions/other").status_code == 401
        for header in ("", "v1", "v1 a b c d", "v2 - f 1 00", "v1 %%% f 1 00"):
            assert server.http.get(path, headers={HEADER: header}).status_code == 401


def test_a_signature_covers_everything_that_matters() -> None:
    fields = {
        "target": 3,
        "method": "POST",
        "path": "/v1/x?y=1",
        "key": "k€y",
        "origin": "ab",
        "nonce": "n",
        "body": b"{}",
    }
    header = sign(b"token", **fields)  # type: ignore[arg-type]
    own = {"own": 3, "method": "POST", "path": "/v1/x?y=1", "body": b"{}"}
    found = verify(b"token", header, **own)  # type: ignore[arg-type]
    assert found is not None
    assert (found.key, found.origin) == ("k€y", "ab")
    for change in ({"own": 4}, {"method": "GET"}, {"path": "/v1/x"}, {"body": b"{ }"}):
        assert verify(b"token", header, **{**own, **change}) is None  # type: ignore[arg-type]
    assert verify(b"other", header, **own) is None  # type: ignore[arg-type]
    assert verify(None, header, **own) is None  # type: ignore[arg-type]
    version, key, origin, nonce, mac = header.split(" ")
    for forged in (f"{version} - {origin} {nonce} {mac}", f"{version} {key} cd {nonce} {mac}"):
        assert verify(b"token", forged, **own) is None  # type: ignore[arg-type]


def test_a_pod_that_shuts_down_ends_the_streams_that_it_passes_on() -> None:
    with running(ordinal=0) as owner:
        tell(owner, 1, [peer(owner, 0)])
        session = owner.session()
        found: list[str] = []
        with running(ordinal=1) as other:
            tell(other, 1, [peer(owner, 0)])
            body = chat_body(script("x", then="stall"), session_id=session, stream=True)

            def read() -> None:
                found.append(httpx.post(other.url + "/v1/chat/completions", json=body, timeout=30).text)

            reader = threading.Thread(target=read)
            reader.start()
            wait_for(lambda: owner.state()["requests"]["running"] == 1)
        reader.join(10)
        assert events_of(found[0])[-1]["error"]["code"] == "server_shutdown"
        owner.idle(10)
