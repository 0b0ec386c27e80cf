"""The access log, X-Request-ID and the metrics: what they say, and what they never say."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from carousel_server import http_stats, stats
from carousel_server.access_log import JsonLines
from carousel_server.failure import CODES

from tests.server.http_kit import Running, running, script, wait_for

DOCS = Path(__file__).parents[2] / "docs"


def log_lines(caplog: pytest.LogCaptureFixture, path: str) -> list[dict[str, Any]]:
    found = [record.line for record in caplog.records if hasattr(record, "line")]  # type: ignore[attr-defined]
    return [line for line in found if line["path"] == path]


def test_a_turn_is_one_line_with_ids_tokens_and_times_and_no_content(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running(access_log=True) as server:
        session = server.session(system="a secret system message")
        reply = server.chat(
            script("secret ", "reply"), session_id=session, user="u-1", metadata={"team": "blue"}, request_id="r-1"
        )
        assert reply.status_code == 200
        line = wait_for(lambda: log_lines(caplog, "/v1/chat/completions"))[0]
        assert line["request_id"] == "r-1"
        assert line["session_id"] == session
        assert (line["outcome"], line["finish"], line["status"]) == ("ok", "stop", 200)
        assert line["completion_tokens"] == 3
        assert line["prompt_tokens"] == reply.json()["usage"]["prompt_tokens"]
        assert (line["user"], line["metadata"]) == ("u-1", {"team": "blue"})
        assert 0 <= line["prepare_ms"] <= line["total_ms"]
        assert 0 <= line["first_output_ms"] <= line["total_ms"]
        assert server.chat("a secret request", temprature=1).status_code == 400
        assert wait_for(lambda: len(log_lines(caplog, "/v1/chat/completions")) == 2)
        assert log_lines(caplog, "/v1/chat/completions")[1]["outcome"] == "unknown_field"
    text = "\n".join(JsonLines().format(record) for record in caplog.records)
    assert "secret" not in text
    assert '"user":"u-1"' in text


def test_x_request_id_is_echoed_or_made(server: Running) -> None:
    reply = server.chat(request_id="mine")
    assert reply.headers["x-request-id"] == reply.json()["id"] == "mine"
    for path, method in (("/health", "GET"), ("/v1/nothing", "GET"), ("/v1/chat/completions", "POST")):
        given = server.http.request(method, path, headers={"x-request-id": "corr-1"})
        assert given.headers["x-request-id"] == "corr-1"
        assert re.fullmatch("[0-9a-f]{32}", server.http.request(method, path).headers["x-request-id"])
    odd = server.http.get("/health", headers={"x-request-id": "a b\tc"})
    assert odd.headers["x-request-id"] != "a b\tc"
    assert server.http.get("/health", headers={"x-request-id": "x" * 129}).headers["x-request-id"] != "x" * 129


def test_metrics_count_what_happened() -> None:
    with running() as server:
        server.chat(script("a", "b", delay_ms=60), stream=True)  # apart: what comes at once is one output
        server.chat(temprature=1)
        server.chat(session_id=f"0.{'0' * 16}.{'0' * 48}")
        server.http.get("/v1/sessions/" + "x" * 50)
        text = server.http.get("/metrics").text
        for sample in (
            'carousel_http_requests_total{outcome="ok",path="/v1/chat/completions"} 1.0',
            'carousel_http_requests_total{outcome="unknown_field",path="/v1/chat/completions"} 1.0',
            'carousel_http_requests_total{outcome="not_found",path="/v1/sessions/{id}"} 1.0',
            'carousel_session_lost_total{cause="unknown"} 1.0',
            "carousel_time_to_first_output_seconds_count 1.0",
            "carousel_inter_output_seconds_count 1.0",
            "carousel_queue_seconds_count 1.0",
            'carousel_requests_total{outcome="completed"} 1.0',
            'carousel_tokens_total{kind="output"} 3.0',
        ):
            assert sample in text, sample
        plan = server.admin.get("/admin/plan").json()["host"]
        assert all(f'row="{row["key"]}"' in text for row in plan)


def test_every_metric_and_every_error_code_is_documented() -> None:
    page = (DOCS / "observability.md").read_text()
    core = [f"{name}_total" for name in stats.COUNTERS] + list(stats.GAUGES)
    assert [name for name in (*core, *http_stats.NAMES) if f"`{name}`" not in page] == []
    api = (DOCS / "api.md").read_text()
    assert [code for code, (status, _) in CODES.items() if f"| `{code}` | {status} |" not in api] == []


def test_an_unforeseen_fault_is_500_in_the_same_shape_and_logged(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret detail")

    assert server.server.service is not None
    monkeypatch.setattr(server.server.service, "list_sessions", broken)
    reply = server.http.get("/v1/sessions")
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in reply.text
    assert wait_for(lambda: "the secret detail" in caplog.text)
