"""The end of a server whose clients do not help."""

import time

import pytest
from carousel_server import server

from tests.server.core_gate import RawClient
from tests.server.http_kit import chat_body, running, script, wait_for


def test_a_reader_that_stands_still_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "SHUTDOWN_SECONDS", 0.2)
    monkeypatch.setattr(server, "FRAME_SECONDS", 0.5)
    with running(settings={"engine.outputQueueBytes": "64Mi"}) as found:
        body = chat_body(script("z" * 3000, then="length"), stream=True, max_tokens=900)
        client = RawClient(found, body)
        # More than the sockets hold: the writer waits.
        shown = found.http.get
        wait_for(lambda: [one["output_tokens"] > 300 for one in shown("/v1/requests").json()["data"]] == [True])
        began = time.monotonic()
    assert time.monotonic() - began < 4
    client.drop()
