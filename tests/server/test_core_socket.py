"""The cancel table and the order of streams against a server process with the embedded model; after each test nothing
is held.

A full queue is a cell only where output is written: decode and MTP decode of a stream.
"""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import httpx
import pytest
from carousel_server.engine import EMBEDDED
from carousel_server.tokenizer import Tokenizer

from tests.server.core_gate import GatedServer, RawClient, gated
from tests.server.http_kit import chat_body, events_of, lines_of, text_of, wait_for

PHASES = ["preparing", "queued", "prefill", "decode", "mtp_decode", "completing", "claimed"]
# The point that a turn in this phase is about to pass, and how many of its passages come before.
POINTS = {
    "preparing": ("prepare", 0),
    "queued": ("step", 0),
    "prefill": ("prefill", 1),
    "decode": ("step", 2),
    "mtp_decode": ("step", 2),
    "completing": ("completing", 0),
    "claimed": ("claimed", 0),
}
FLAGS = ["--engine-prefill-chunk", "64", "--engine-context-tokens", "2048", "--engine-output-queue-bytes", "16384"]
FLAGS += ["--limits-active-requests", "2", "--limits-max-output-tokens", "1500"]
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedServer]:
    with gated(tmp_path_factory.mktemp("gated"), *FLAGS) as found:
        yield found


@pytest.fixture
def tiny(process: GatedServer) -> Iterator[GatedServer]:
    yield process
    assert process.idle(60)["reservedBytes"] == 0


def start(server: GatedServer, session: str, phase: str, stream: bool) -> RawClient:
    # Its own id first: a prompt that an earlier cell left in the prefix cache would prefill nothing.
    text = session[-8:] + " Tell me about the sea and the ships on it. " * (12 if phase == "prefill" else 1)
    sampled = {"temperature": 0.8} if phase == "decode" else {}
    body = chat_body(text, session_id=session, request_id=f"cell-{session}", max_tokens=12, stream=stream, **sampled)
    return RawClient(server, body)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("cause", ["api", "disconnect", "half_close"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_cancel_in_this_phase_has_its_outcome(tiny: GatedServer, phase: str, cause: str, stream: bool):
    session = tiny.session(seed=3)
    point, after = POINTS[phase]
    others = []
    with tiny.gate.hold(point, after=after):
        if phase == "queued":
            others = [RawClient(tiny, chat_body(f"count {n}", max_tokens=6)) for n in range(2)]
            tiny.gate.wait()
            wait_for(lambda: sum(tiny.state()["requests"].values()) == 2, 30)
        client = start(tiny, session, phase, stream)
        if phase != "queued":
            tiny.gate.wait()
        wait_for(lambda: phase_of(tiny, session) == phase.removeprefix("mtp_"), 30)
        if cause == "api":
            answers = [tiny.http.post(f"/v1/requests/cell-{session}/cancel").status_code for _ in range(2)]
            # Once its final output is written a request is no longer known; that may be before the second asking.
            assert answers in ([[409, 409]] if phase == "claimed" else [[200, 200], [200, 404]])
        elif cause == "disconnect":
            client.drop()
            if phase == "claimed":
                assert [phase_of(tiny, session) for _ in range(3)] == ["claimed"] * 3
            else:
                wait_for(lambda: phase_of(tiny, session) in (None, "cancelled"), 30)
        else:
            client.half_close()
    done = cause == "half_close" or phase == "claimed"
    if cause != "disconnect":
        status, body = client.read()
        if done:
            assert status == 200, body
            assert '"cancelled"' not in body
            assert '"finish_reason":"' in body
        elif stream and phase != "preparing":
            assert status == 200
            assert events_of(body)[-1]["error"]["code"] == "cancelled"
        else:
            assert status == 499
            assert '"cancelled"' in body
    for other in others:
        assert other.read()[0] == 200
    state = tiny.idle(60)
    assert (tiny.turns_of(session), state["sessions"]["inFlight"], state["reservedBytes"]) == (int(done), 0, 0)
    assert tiny.http.delete(f"/v1/sessions/{session}").status_code == 200


def phase_of(server: GatedServer, session: str) -> str | None:
    """The phase of the session's cell; None once it is no longer known."""
    data = server.http.get("/v1/requests").json()["data"]
    return next((one["phase"] for one in data if one["id"] == f"cell-{session}"), None)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("phase", ["decode", "mtp_decode"])
def test_a_reader_that_stands_still_fills_its_queue_and_is_cancelled(tiny: GatedServer, phase: str, stream: bool):
    """A JSON reply has no queue that a client could fill: it is read to its end and kept."""
    session = tiny.session(seed=3)
    endless = {str(token): -100 for token in Tokenizer.load(EMBEDDED).stop_tokens}
    sampled = {"temperature": 0.8, "logit_bias": endless} if phase == "decode" else {}
    most = 1400 if stream else 200
    # The model answers nothing but zeros with zeros without end.
    body = chat_body("0" * 200, session_id=session, max_tokens=most, stream=stream, logprobs=True, **sampled)
    body["top_logprobs"] = 20
    drafts = tiny.metric('carousel_drafts_total{result="proposed"}')
    full = 'carousel_requests_cancelled_total{cause="queue_full"}'
    before = tiny.metric(full)
    client = RawClient(tiny, body)
    quick = tiny.chat("quick", max_tokens=3, temperature=0.8)
    assert quick.status_code == 200
    if stream:
        wait_for(lambda: tiny.metric(full) == before + 1, 60)
    status, text = client.read()
    assert status == 200
    if stream:
        assert events_of(text)[-1]["error"]["code"] == "cancelled"
    tiny.idle(60)
    assert tiny.turns_of(session) == (0 if stream else 1)
    assert (tiny.metric('carousel_drafts_total{result="proposed"}') > drafts) == (phase == "mtp_decode")


def test_once_the_finish_chunk_was_sent_the_turn_is_committed(tiny: GatedServer):
    for n in range(5):
        session = tiny.session()
        client = RawClient(tiny, chat_body(f"hello {n}", session_id=session, max_tokens=2, stream=True))
        seen = b""
        while b'"finish_reason":"' not in seen:
            seen += client.socket.recv(64)
        client.drop()
        tiny.idle(60)
        assert tiny.turns_of(session) == 1


def test_a_cancelled_turn_leaves_the_next_one_as_if_it_had_never_been(tiny: GatedServer):
    def second_turn(cancelled: bool) -> str:
        session = tiny.session(seed=11, temperature=1.0)
        tiny.chat("My name is Ada.", session_id=session, max_tokens=6).raise_for_status()
        if cancelled:
            with tiny.gate.hold("step", after=3):
                client = RawClient(tiny, chat_body("One more thing.", session_id=session, request_id="gone"))
                tiny.gate.wait()
                tiny.http.post("/v1/requests/gone/cancel").raise_for_status()
            assert client.read()[0] == 499
        return content(tiny.chat("What is my name?", session_id=session, max_tokens=12))

    assert second_turn(cancelled=True) == second_turn(cancelled=False)


def test_a_cancel_is_answered_alike_for_a_queued_and_an_unknown_request(tiny: GatedServer):
    with tiny.gate.hold("step"):
        others = [RawClient(tiny, chat_body(f"count {n}", max_tokens=2)) for n in range(2)]
        tiny.gate.wait()
        wait_for(lambda: sum(tiny.state()["requests"].values()) == 2, 30)
        waiting = RawClient(tiny, chat_body("late", max_tokens=2, request_id="waits"))
        wait_for(lambda: tiny.state()["requests"]["queued"] == 1, 30)
        before = tiny.metric('carousel_tokens_total{kind="output"}')
        assert tiny.http.post("/v1/requests/waits/cancel").status_code == 200
        status, body = waiting.read()
        assert (status, '"content"' in body) == (499, False)
        assert tiny.metric('carousel_tokens_total{kind="output"}') == before
        for _ in range(2):
            assert tiny.http.post("/v1/requests/nobody/cancel").status_code == 404
    assert [other.read()[0] for other in others] == [200, 200]


STEPS = 20  # of both streams together


def test_two_streams_interleave_frame_by_frame(tiny: GatedServer):
    """The worker is let on one step at a time, so that a slow machine cannot put two steps into one frame."""
    order: list[int] = []

    def read(number: int) -> None:
        body = chat_body("Tell me a long story.", max_tokens=24, stream=True, temperature=1.0, seed=number)
        with tiny.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            order.extend(number for line in reply.iter_lines() if '"content":' in line and '"content":""' not in line)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(2)]
    with tiny.gate.hold("prefill"):
        for thread in threads:
            thread.start()
        tiny.gate.wait()
        wait_for(lambda: sum(tiny.state()["requests"].values()) == 2, 30)
        tiny.gate.ask("hold", point="step", after=0)
        for _ in range(STEPS):
            tiny.gate.ask("onward")
            tiny.gate.wait()
            time.sleep(0.02)  # the clients read what the step before gave
    for thread in threads:
        thread.join(60)
    changes = sum(a != b for a, b in pairwise(order[:STEPS]))
    assert set(order) == {0, 1}
    assert changes >= STEPS - 5, order  # a token may show nothing: a space that waits for the next one


CHATS = (
    ("Tell me about the sea.", {"temperature": 0.9, "seed": 1}),
    ("Tell me about the sea.", {"temperature": 1.3, "seed": 2, "top_p": 0.9}),
    ("What is a ship?", {"temperature": 0.7, "seed": 3, "top_k": 20, "frequency_penalty": 0.5}),
    ("What is a ship?", {}),
)


def test_four_mixed_chats_say_together_what_each_says_alone(tiny: GatedServer):
    def say(number: int, stream: bool) -> str:
        text, settings = CHATS[number]
        reply = tiny.chat(text, max_tokens=16, stream=stream, **settings)
        assert reply.status_code == 200
        return text_of(events_of(reply.text)) if stream else content(reply)

    alone = [say(n, stream=False) for n in range(4)]
    together = dict.fromkeys(range(4), "")

    def run(number: int) -> None:
        together[number] = say(number, stream=number % 2 == 0)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert list(together.values()) == alone
    assert len(set(alone)) == 4


def test_an_engine_failure_ends_its_turn_only(tiny: GatedServer):
    session = tiny.session()
    tiny.chat("first", session_id=session, max_tokens=2).raise_for_status()
    for stream in (False, True):
        for point in ("prefill", "step"):
            tiny.gate.ask("fail", point=point)
            reply = tiny.chat("second", session_id=session, max_tokens=4, stream=stream)
            assert reply.status_code == (200 if stream else 500)
            assert "generation_failed" in reply.text
            assert not stream or lines_of(reply)[-1] == "data: [DONE]"
            assert tiny.turns_of(session) == 1
    tiny.chat("third", session_id=session, max_tokens=2).raise_for_status()
    assert tiny.turns_of(session) == 2


def test_without_memory_a_request_is_503_alone_and_waits_beside_another(tiny: GatedServer):
    tiny.gate.ask("fail", point="create")
    refused = tiny.chat("alone", max_tokens=2)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "out_of_memory")
    assert "retry-after" in refused.headers
    with tiny.gate.hold("step"):
        first = RawClient(tiny, chat_body("first", max_tokens=8, temperature=0.8))
        tiny.gate.wait()
        tiny.gate.ask("fail", point="create")
        second = RawClient(tiny, chat_body("second", max_tokens=2))
        wait_for(lambda: sum(tiny.state()["requests"].values()) == 2, 30)
    assert [first.read()[0], second.read()[0]] == [200, 200]


def test_streamed_json_and_committed_text_are_the_same(tiny: GatedServer):
    fields = {"max_tokens": 10, "temperature": 1.0, "seed": 4}
    whole = content(tiny.chat("Say something.", **fields))
    session = tiny.session()
    reply = tiny.chat("Say something.", session_id=session, stream=True, **fields)
    assert text_of(events_of(reply.text)) == whole
    # The session's next turn is that of a client which sends the history itself.
    history = [{"role": "user", "content": "Say something."}, {"role": "assistant", "content": whole}]
    body = chat_body("Go on.", max_tokens=12)
    stateless = tiny.http.post("/v1/chat/completions", json={**body, "messages": [*history, *body["messages"]]})
    kept = tiny.chat("Go on.", session_id=session, max_tokens=12)
    assert content(kept) == content(stateless)
    assert kept.json()["usage"]["prompt_tokens"] == stateless.json()["usage"]["prompt_tokens"]


def content(reply: httpx.Response) -> str:
    """The text of a JSON reply."""
    reply.raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])
