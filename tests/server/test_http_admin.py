"""The admin port, a drain from start to end, and what probes see in each phase."""

import threading
import time
from pathlib import Path

import pytest
from carousel_server import drain_cli
from carousel_server.admin_state import AdminState

from tests.server.http_kit import TOKEN, Running, begin, chat_body, running, script, wait_for

DRAIN = {"reason": "rollout", "remainingSeconds": 60, "idleGraceSeconds": 0}


def test_every_admin_path_but_the_probes_needs_the_token(server: Running) -> None:
    for path in ("/livez", "/readyz"):
        assert server.probe.get(path).status_code == 200
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
        for method, path in (
            ("GET", "/admin/state"),
            ("POST", "/admin/drain"),
            ("DELETE", "/admin/drain"),
            ("POST", "/admin/drain/close"),
            ("GET", "/admin/limits"),
            ("PUT", "/admin/limits"),
            ("PUT", "/admin/peers"),
            ("GET", "/admin/plan"),
        ):
            reply = server.probe.request(method, path, headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key"), path


def test_the_admin_paths_are_not_on_the_client_port(server: Running) -> None:
    for path in ("/admin/state", "/livez", "/readyz", "/admin/plan"):
        assert server.http.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 404


def test_without_a_token_file_the_admin_port_refuses() -> None:
    with running(token=None) as server:
        reply = server.admin.get("/admin/state")
        assert reply.status_code == 401
        assert "no admin token" in reply.json()["error"]["message"]


def test_the_state_is_the_contract(server: Running) -> None:
    state = AdminState.model_validate(server.state())
    assert (state.phase, state.progress, state.ordinal) == ("serving", 1.0, 0)
    assert len(state.boot_id) == 16
    plan = server.admin.get("/admin/plan").json()
    assert state.plan_host_bytes == plan["hostBytes"] == sum(row["bytes"] for row in plan["host"])


def test_a_drain_goes_through_its_phases() -> None:
    with running() as server:
        session = server.session()
        assert server.chat(session_id=session).status_code == 200
        assert server.admin.post("/admin/drain/close", json={}).json()["error"]["code"] == "not_quiet"
        assert server.admin.post("/admin/drain", json=DRAIN).json()["phase"] == "draining"
        again = server.admin.post("/admin/drain", json={**DRAIN, "remainingSeconds": 30}).json()
        assert 29 < again["drain"]["remainingSeconds"] <= 30

        refused = server.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert server.http.post("/v1/sessions", json={}).status_code == 503
        live = server.chat(session_id=session)
        assert live.status_code == 200
        assert live.headers["x-session-deadline"] == "0"
        assert server.http.get("/health").json()["status"] == "draining"
        assert server.probe.get("/readyz").status_code == 200

        closed = server.admin.post("/admin/drain/close", json={})
        assert closed.json()["drain"]["closed"] is True
        assert server.probe.get("/readyz").status_code == 503
        assert server.probe.get("/livez").status_code == 200
        assert server.http.get("/health").status_code == 503
        assert server.chat(session_id=session).status_code == 503

        assert server.admin.delete("/admin/drain").json()["drain"] is None
        assert server.probe.get("/readyz").status_code == 200
        assert "x-session-deadline" not in server.chat(session_id=session).headers


def test_a_pod_without_sessions_is_not_ready_in_a_drain() -> None:
    with running() as server:
        server.admin.post("/admin/drain", json=DRAIN)
        assert server.probe.get("/readyz").status_code == 503
        assert server.probe.get("/livez").status_code == 200


def test_the_session_deadline_is_the_smaller_of_deadline_and_grace() -> None:
    with running() as server:
        session = server.session()
        for remaining, grace, shown in ((60, 20, "20"), (15, 40, "15")):
            server.admin.post(
                "/admin/drain", json={"reason": "rollout", "remainingSeconds": remaining, "idleGraceSeconds": grace}
            )
            for reply in (
                server.chat(session_id=session),
                server.chat(session_id=session, stream=True),
                server.http.get(f"/v1/sessions/{session}"),
            ):
                assert abs(int(reply.headers["x-session-deadline"]) - int(shown)) <= 1


def test_close_waits_for_requests_unless_forced() -> None:
    with running() as server:
        session = server.session()
        body = chat_body(script("x", then="stall"), stream=True, session_id=session)
        with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            _rest = begin(reply)
            server.admin.post("/admin/drain", json=DRAIN)
            refused = server.admin.post("/admin/drain/close", json={})
            assert refused.status_code == 409
            assert "1 requests run" in refused.json()["error"]["message"]
            assert server.admin.post("/admin/drain/close", json={"force": True}).status_code == 200
        server.idle()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"reason": "because", "remainingSeconds": 1, "idleGraceSeconds": 0}, "reason"),
        ({"reason": "rollout", "remainingSeconds": -1, "idleGraceSeconds": 0}, "remainingSeconds"),
        ({"reason": "rollout", "remainingSeconds": 1, "idleGraceSeconds": 0, "until": 1}, "until"),
        ({}, "reason"),
    ],
)
def test_a_faulty_drain_is_400_with_the_field(server: Running, body: dict[str, object], words: str) -> None:
    reply = server.admin.post("/admin/drain", json=body)
    assert (reply.status_code, words in reply.json()["error"]["message"]) == (400, True)


def test_limits_are_hot_and_an_older_generation_is_refused() -> None:
    with running() as server:
        now = server.admin.get("/admin/limits").json()
        assert (now["generation"], now["limits"]["requestBytes"]) == (0, "4Mi")
        update = {"generation": 3, "limits": {"requestBytes": "2Ki", "maxOutputTokens": 7, "socketTimeout": "9s"}}
        assert server.admin.put("/admin/limits", json=update).json()["limits"]["maxOutputTokens"] == 7
        assert server.state()["limitsGeneration"] == 3
        assert server.chat("x" * 3000).status_code == 413
        assert server.chat(max_tokens=8).json()["error"]["code"] == "limits_exceeded"
        assert server.server.wire.socket_seconds == 9
        stale = server.admin.put("/admin/limits", json={"generation": 2, "limits": {}})
        assert (stale.status_code, stale.json()["error"]["code"]) == (409, "stale_generation")
        faulty = server.admin.put("/admin/limits", json={"generation": 4, "limits": {"activeRequest": 1}})
        assert faulty.status_code == 400
        assert "activeRequest" in faulty.json()["error"]["message"]


def test_while_loading_everything_says_so_and_the_pod_lives(tmp_path: Path) -> None:
    loading = threading.Event()
    with running(loading=loading) as server:
        health = server.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        assert server.probe.get("/readyz").status_code == 503
        assert server.probe.get("/livez").status_code == 200
        state = AdminState.model_validate(server.state())
        assert (state.phase, state.boot_id) == ("loading", server.boot_id)
        reply = server.chat()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "loading")
        assert int(reply.headers["retry-after"]) >= 1
        assert server.http.get("/v1/models").status_code == 503
        assert "carousel_serving 0" in server.http.get("/metrics").text
        assert server.admin.post("/admin/drain", json=DRAIN).status_code == 503
        boot = server.state()["bootId"]
        loading.set()
        wait_for(lambda: server.http.get("/health").status_code == 200)
        assert server.state()["bootId"] == boot
        assert server.chat().status_code == 200


def test_a_full_queue_is_429_and_no_reason_to_restart() -> None:
    with running(settings={"limits.activeRequests": 1, "limits.queuedRequests": 1}) as server:
        streams, rests = [], []
        for n in range(2):
            body = chat_body(script("x", then="stall"), stream=True, request_id=f"r{n}")
            stream = server.http.stream("POST", "/v1/chat/completions", json=body)
            streams.append(stream)
            rests.append(begin(stream.__enter__()))
        full = server.chat()
        assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
        assert int(full.headers["retry-after"]) >= 1
        for path in ("/livez", "/readyz"):
            assert server.probe.get(path).status_code == 200
        assert [r["queue_position"] for r in server.http.get("/v1/requests").json()["data"]] == [None, 1]
        for n, stream in enumerate(streams):
            server.http.post(f"/v1/requests/r{n}/cancel")
            stream.__exit__(None, None, None)
        server.idle()


def test_a_server_whose_engine_still_loads_serves_and_says_how_far_it_is() -> None:
    with running() as server:
        service = server.server.service
        assert service is not None
        assert service._engine is not None
        stats = service._engine.stats
        stats.loaded, stats.loading = 0.4, "experts of layer 7 of 49"
        assert server.http.get("/health").json() == {
            "status": "serving", "progress": 0.4, "message": "experts of layer 7 of 49"
        }  # fmt: skip
        assert server.chat().status_code == 200
        assert (server.state()["phase"], server.probe.get("/readyz").status_code) == ("serving", 200)
        service.lost("an illegal address")
        assert server.probe.get("/livez").json()["message"] == "an illegal address"


def test_livez_fails_when_the_worker_is_dead_or_the_device_is_lost() -> None:
    with running() as server:
        service = server.server.service
        assert service is not None
        service.lost("an illegal address")
        reply = server.probe.get("/livez")
        assert (reply.status_code, reply.json()["message"]) == (503, "an illegal address")
        assert server.http.get("/health").status_code == 503
        service._failed = ""
        service.stop()
        reply = server.probe.get("/livez")
        assert (reply.status_code, reply.json()["message"]) == (503, "the worker thread has ended")


def run_drain(server: Running, tmp_path: Path, *more: str) -> tuple[int, float]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    began = time.monotonic()
    code = drain_cli.main(["--admin-port", str(server.admin_port), "--admin-token", str(token), *more])
    return code, time.monotonic() - began


def test_drain_wait_takes_at_least_five_seconds_and_waits_for_requests(tmp_path: Path) -> None:
    with running() as server:
        body = chat_body(script("x", then="stall"), stream=True, request_id="r")
        with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            _rest = begin(reply)
            timer = threading.Timer(5.6, lambda: server.http.post("/v1/requests/r/cancel"))
            timer.start()
            code, seconds = run_drain(server, tmp_path, "--wait")
        assert code == 0
        assert 5.5 < seconds < 8
        assert server.state()["drain"]["reason"] == "eviction"


def test_drain_wait_ends_at_its_timeout_and_leaves_the_operators_drain(tmp_path: Path) -> None:
    with running() as server:
        server.admin.post("/admin/drain", json={"reason": "restart", "remainingSeconds": 60, "idleGraceSeconds": 9})
        server_session = server.state()["drain"]
        code, seconds = run_drain(server, tmp_path, "--wait", "--timeout", "600ms")
        assert (code, seconds < 3) == (0, True)
        assert server.state()["drain"]["reason"] == server_session["reason"] == "restart"


def test_drain_of_a_server_that_is_gone_is_done(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    assert drain_cli.main(["--wait", "--admin-port", "1", "--admin-token", str(token)]) == 0
    assert drain_cli.main(["--wait", "--admin-token", str(tmp_path / "none")]) == 64
    assert drain_cli.main(["--wait", "--admin-token", str(token), "--timeout", "soon"]) == 64


def test_drain_with_a_wrong_token_says_so(tmp_path: Path, server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    token.write_text("wrong")
    assert drain_cli.main(["--admin-port", str(server.admin_port), "--admin-token", str(token)]) == 1
    assert "the server refused: 401" in capsys.readouterr().err
