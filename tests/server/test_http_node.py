"""The official OpenAI client for Node, unchanged, against a live server. `.ci/setup tests` installs both."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.http_kit import Running, running, script

FOLDER = Path(__file__).parent / "node_client"


def seen(server: Running, scenario: str, *more: str | dict[str, Any]) -> Any:
    """What the client saw in this scenario of node_client/client.mjs."""
    node = shutil.which("node")
    assert node, "this test needs node: .ci/setup tests installs it"
    assert (FOLDER / "node_modules/openai").is_dir(), "this test needs the client: .ci/setup tests installs it"
    arguments = [json.dumps(one) if isinstance(one, dict) else one for one in more]
    command = [node, str(FOLDER / "client.mjs"), server.url, scenario, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def speaking() -> Iterator[Running]:
    with running(engine="torch") as found:
        yield found
        found.idle(30)


def test_chat(server: Running) -> None:
    found = seen(server, "chat", script("Hello ", "there"))
    assert (found["content"], found["finish"]) == ("Hello there", "stop")
    assert found["usage"]["completion_tokens"] == 3


def test_a_stream_with_usage(server: Running) -> None:
    found = seen(server, "stream", script("a", "b", "é"))
    assert "".join(found["deltas"]) == "abé"
    assert found["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("how", ["json", "stream"])
def test_the_clients_own_loop_calls_a_real_function_and_the_model_tells_its_result(speaking: Running, how: str) -> None:
    found = seen(speaking, "tools", "What's the weather in Oslo right now?", how)
    assert found["called"] == ["Oslo"]
    assert found["roles"] == ["user", "assistant", "tool", "assistant"]
    assert "21" in found["content"]


def test_streamed_calls_add_up_with_the_clients_own_helper(server: Running) -> None:
    values = "<parameter=a>\n{}\n</parameter>\n<parameter=b>\n{}\n</parameter>\n"
    calls = [
        f"<tool_call>\n<function=add>\n{values.format(*pair)}</function>\n</tool_call>" for pair in ((2, 3), (40, 2))
    ]
    found = seen(server, "calls", script("I add.", calls[0], "\n", calls[1]))
    assert found == {"finish": "tool_calls", "calls": [{"a": 2, "b": 3}, {"a": 40, "b": 2}]}


def test_errors_are_the_right_classes(server: Running) -> None:
    found = seen(server, "errors", script("x", then="error"))
    assert {what: (error["name"], error["status"], error["code"]) for what, error in found.items()} == {
        "range": ("BadRequestError", 400, "invalid_request"),
        "model": ("NotFoundError", 404, "model_not_found"),
        "engine": ("InternalServerError", 500, "generation_failed"),
        "stream": ("APIError", None, "generation_failed"),
        "session": ("APIError", 410, "session_lost"),
    }
    assert found["range"]["param"] == "temperature"


def test_a_wrong_key_is_an_authentication_error(tmp_path: Path) -> None:
    (tmp_path / "team").write_text("sk-1")
    with running(api_keys=tmp_path) as server:
        assert seen(server, "key")["name"] == "AuthenticationError"


def test_leaving_a_stream_cancels_it(server: Running) -> None:
    assert seen(server, "cancel", script("x", then="stall")) == "left"
    server.idle(10)
    assert 'carousel_requests_cancelled_total{cause="disconnect"} 1.0' in server.http.get("/metrics").text
