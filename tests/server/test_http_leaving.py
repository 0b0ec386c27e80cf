"""How a server leaves its clients: whoever has a connection gets an answer by it, and is told to go elsewhere."""

import collections
import random
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from carousel_server.http import Port

from tests.server.http_kit import Running, chat_body, running, script, wait_for

ASK = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
DRAIN = {"reason": "eviction", "remainingSeconds": 30, "idleGraceSeconds": 0}


def client(url: str, keep: int, seed: int, over: threading.Event, counts: "collections.Counter[str]") -> None:
    """Turns at random times until the port refuses them; `keep` connections stay open in between. A kept one may be
    closed in the moment in which it is used, which no server can help: such a turn is sent again, once."""
    pauses, again = random.Random(seed), False
    body = chat_body(script("a", "b", delay_ms=2))
    with httpx.Client(base_url=url, timeout=20, limits=httpx.Limits(max_keepalive_connections=keep)) as http:
        while not over.is_set():
            try:
                answer = http.post("/v1/chat/completions", json=body)
                counts[str(answer.status_code)] += 1
                again = False
            except httpx.ConnectError:
                counts["refused"] += 1
                return
            except httpx.HTTPError as error:
                again = keep > 0 and not again
                counts["sent again" if again else repr(error)] += 1
            time.sleep(pauses.random() * 0.01)


def test_no_client_finds_its_connection_broken_when_the_server_ends() -> None:
    counts: collections.Counter[str] = collections.Counter()
    for round_number in range(8):
        over = threading.Event()
        with running() as server:
            threads = [
                threading.Thread(target=client, args=(server.url, seed % 2, 10 * round_number + seed, over, counts))
                for seed in range(8)
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.1 + 0.02 * round_number)
        over.set()
        for thread in threads:
            thread.join(30)
    assert set(counts) - {"sent again"} == {"200", "503", "refused"}, counts
    assert counts["sent again"] < 4, counts


def test_in_a_drain_every_answer_ends_its_connection(running_server: Running) -> None:
    session = running_server.session()
    assert "connection" not in running_server.chat(session_id=session).headers
    running_server.admin.post("/admin/drain", json=DRAIN).raise_for_status()
    for answer in (running_server.chat(session_id=session), running_server.chat(), running_server.http.get("/health")):
        assert answer.headers["connection"] == "close", answer
    running_server.admin.delete("/admin/drain").raise_for_status()
    assert "connection" not in running_server.chat(session_id=session).headers


def test_a_port_that_is_closed_to_new_connections_answers_by_the_ones_that_are_open(running_server: Running) -> None:
    port: Port = running_server.server.ports[0]
    with running_server.connect() as early:
        wait_for(lambda: port.expecting)
        running_server.loop.call_soon_threadsafe(port.close_to_new)
        wait_for(lambda: not reaches(running_server))
        early.sendall(ASK)
        assert early.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert not port.expecting
        early.sendall(ASK[:10])
        wait_for(lambda: port.expecting)


def reaches(server: Running) -> bool:
    """Whether a connection opens within 0.3 s."""
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=0.3).close()
    except TimeoutError:
        return False
    return True


@pytest.fixture
def running_server() -> Iterator[Running]:
    """A server of its own: these tests end or close it."""
    with running() as found:
        yield found
