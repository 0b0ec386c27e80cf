"""The process: what it prints, how it ends on signals, and the exit code of everything that cannot start."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from carousel_server.__main__ import main, ordinal_of

from tests.server.http_kit import TOKEN, chat_body, events_of, script, wait_for


class Process:
    """`carousel-server serve` as a child."""

    def __init__(self, tmp_path: Path, *more: str, env: dict[str, str] | None = None) -> None:
        (tmp_path / "token").write_text(TOKEN)
        self.log = (tmp_path / "log").open("w+")
        command = [sys.executable, "-m", "carousel_server", "serve", "--engine", "scripted", "--host", "127.0.0.1"]
        command += ["--port", "0", "--admin-port", "0", "--admin-token", str(tmp_path / "token"), *more]
        self.child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ, **(env or {})}
        )
        assert self.child.stdout is not None
        line = json.loads(self.child.stdout.readline())
        assert line["event"] == "listening"
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{line['port']}", timeout=30)
        self.probe = httpx.Client(base_url=f"http://127.0.0.1:{line['admin_port']}", timeout=30)
        wait_for(lambda: self.http.get("/health").status_code == 200, 60)

    def lines(self) -> list[dict[str, object]]:
        self.log.seek(0)
        return [json.loads(line) for line in self.log if line.startswith("{")]


@contextmanager
def process(tmp_path: Path, *more: str, env: dict[str, str] | None = None) -> Iterator[Process]:
    found = Process(tmp_path, *more, env=env)
    try:
        yield found
    finally:
        found.child.kill()
        found.child.wait()
        found.http.close()
        found.probe.close()
        found.log.close()


def test_sigterm_gives_each_stream_one_last_event_and_exits_0(tmp_path: Path) -> None:
    with process(tmp_path) as server:
        stalled = chat_body(script("x", then="stall"), stream=True)
        short = chat_body(script(*"abcdef", delay_ms=200), stream=True)
        with (
            server.http.stream("POST", "/v1/chat/completions", json=stalled) as first,
            server.http.stream("POST", "/v1/chat/completions", json=short) as second,
        ):
            first_lines, second_lines = first.iter_lines(), second.iter_lines()
            next(first_lines), next(second_lines)
            began = time.monotonic()
            server.child.send_signal(signal.SIGTERM)
            wait_for(lambda: server.probe.get("/readyz").status_code == 503)
            refused = server.http.post("/v1/chat/completions", json=chat_body())
            assert refused.json()["error"]["code"] == "draining"
            finished = events_of("\n".join(second_lines))
            assert finished[-1]["choices"][0]["finish_reason"] == "stop"
            cut = events_of("\n".join(first_lines))
            assert cut[-1]["error"]["code"] == "server_shutdown"
        assert 9 < time.monotonic() - began < 40
        assert server.child.wait(60) == 0
        outcomes = {line.get("outcome") for line in server.lines() if line["event"] == "request"}
        assert {"ok", "draining", "server_shutdown"} <= outcomes


def test_an_idle_server_ends_at_once_on_sigterm(tmp_path: Path) -> None:
    with process(tmp_path) as server:
        idle = httpx.Client(base_url=server.http.base_url)  # a kept-alive connection is no reason to wait
        assert idle.get("/health").status_code == 200
        began = time.monotonic()
        server.child.send_signal(signal.SIGTERM)
        assert server.child.wait(60) == 0
        assert time.monotonic() - began < 8  # far less than the drain's 10 s
        idle.close()


def test_a_second_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    with process(tmp_path) as server:
        body = chat_body(script("x", then="stall"), stream=True)
        with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            server.child.send_signal(signal.SIGTERM)
            wait_for(lambda: server.probe.get("/readyz").status_code == 503)
            began = time.monotonic()
            server.child.send_signal(signal.SIGTERM)
            server.child.wait(60)
            assert time.monotonic() - began < 8


def test_flags_variables_and_the_file_set_limits_and_the_flag_wins(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text(
        'generation = 7\n[limits]\nactiveRequests = 2\nqueuedRequests = 9\n[limits.sessions]\nidle = "1h"\n'
    )
    lost = {"ordinal": 2, "bootId": "00112233aabbccdd", "cause": "rollout", "at": "2026-01-01T00:00:00Z"}
    (tmp_path / "peers.json").write_text(json.dumps({"generation": 5, "peers": [], "lost": [lost]}))
    env = {"CAROUSEL_LIMITS_QUEUED_REQUESTS": "11", "CAROUSEL_POD_NAME": "chat-2"}
    with process(tmp_path, "--config", str(config), "--limits-active-requests", "3", env=env) as server:
        state = server.probe.get("/admin/state", headers={"authorization": f"Bearer {TOKEN}"}).json()
        limits = state["limits"]
        assert (limits["activeRequests"], limits["queuedRequests"], limits["sessions"]["idle"]) == (3, 11, "3600s")
        assert (state["limitsGeneration"], state["peersGeneration"], state["ordinal"]) == (7, 5, 2)
        gone = server.http.get(f"/v1/sessions/2.00112233aabbccdd.{'0' * 48}")
        assert gone.status_code == 410
        assert gone.json()["error"]["code"] == "session_lost"
        assert (gone.json()["error"]["cause"], gone.json()["error"]["at"]) == ("rollout", "2026-01-01T00:00:00Z")


def test_a_server_that_is_told_so_takes_no_setting_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CAROUSEL_LIMITS_ACTIVE_REQUESTS", "0")
    command = ["serve", "--engine", "scripted", "--model", "/nowhere/model"]
    assert main(command) == 64
    assert "activeRequests" in capfd.readouterr().err
    assert main([*command, "--no-environment"]) == 66
    assert "/nowhere/model" in capfd.readouterr().err


CANNOT_START = [
    (64, ["--no-such-flag"], "no-such-flag"),
    (64, ["--port", "99999"], "99999"),
    (64, ["--limits-active-requests", "0"], "activeRequests"),
    (64, ["--config", "/nowhere/server.toml"], "/nowhere/server.toml"),
    (64, ["--api-keys", "/nowhere/keys"], "/nowhere/keys"),
    (66, ["--model", "/nowhere/model"], "/nowhere/model"),
    (78, ["--engine-context-tokens", "999999"], "contextTokens is 999999"),
]


@pytest.mark.parametrize(("code", "flags", "words"), CANNOT_START, ids=[" ".join(row[1][:1]) for row in CANNOT_START])
def test_what_cannot_start_has_its_exit_code_and_a_sentence(
    code: int, flags: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(["serve", "--engine", "scripted", *flags])
    except SystemExit as error:
        found = int(error.code or 0)
    text = capfd.readouterr().err
    assert found == code, text
    assert words in text
    assert "Traceback" not in text


def test_a_taken_port_is_64(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ["serve", "--engine", "scripted", "--host", "127.0.0.1", "--port", port, "--admin-port", "0"]
        assert main(command) == 64
    assert f"cannot listen on 127.0.0.1:{port}" in capfd.readouterr().err


def test_a_faulty_checkpoint_is_66(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "something"}')
    assert main(["serve", "--engine", "scripted", "--model", str(tmp_path)]) == 66
    assert "config.json" in capfd.readouterr().err


def test_help_lists_every_command_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("serve", "drain", "inspect", "generate", "chat"))
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    assert all(code in text for code in ("64", "66", "70", "71", "78"))
    assert "--limits-sessions-idle" in text
    assert main(["nothing"]) == 64


def test_the_ordinal_comes_from_the_pods_name() -> None:
    assert [ordinal_of(name) for name in ("chat-0", "my-chat-12", "", "chat", "chat-x")] == [0, 12, 0, 0, 0]


@pytest.mark.parametrize(
    ("then", "code", "words"), [("lost", 70, "CUDA error"), ("out_of_memory", 71, "CUDA out of memory")]
)
def test_a_device_that_fails_under_way_ends_the_process_with_its_code(
    tmp_path: Path, then: str, code: int, words: str
) -> None:
    with process(tmp_path) as server:
        other = chat_body(script("x", then="stall"), stream=True)
        with server.http.stream("POST", "/v1/chat/completions", json=other) as reply:
            lines = reply.iter_lines()
            next(lines)
            failed = server.http.post("/v1/chat/completions", json=chat_body(script("y", then=then)))
            assert failed.status_code >= 500
            assert failed.json()["error"]["message"]
            assert "error" in events_of("\n".join(lines))[-1]  # the other one is told too
        assert server.child.wait(30) == code
        server.log.seek(0)
        last = server.log.read().splitlines()[-1]  # what Kubernetes tells of the container
        assert last.startswith(f"carousel-server: the device is lost: {words}")
