"""The chat page in headless Chromium, driven by the keyboard as a person would. `.ci/setup tests` installs the browser.

With CAROUSEL_SCREENSHOTS=docs/images the picture in the documentation is taken again.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.http_kit import Running, running, script, wait_for

ENTER, SHIFT, ESCAPE = "\ue007", "\ue008", "\ue00c"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>"


class Page:
    """A browser tab, through WebDriver."""

    def __init__(self, driver: str, url: str) -> None:
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1100,800",
        ]
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self.http = httpx.Client(timeout=120)
        made = self.http.post(f"{driver}/session", json={"capabilities": {"alwaysMatch": capabilities}})
        self.base = f"{driver}/session/{made.json()['value']['sessionId']}"
        self.do("url", {"url": url})

    def do(self, path: str, body: dict[str, Any] | None = None) -> Any:
        reply = self.http.post(f"{self.base}/{path}", json=body or {})
        assert reply.status_code == 200, reply.text
        return reply.json()["value"]

    def script(self, code: str) -> Any:
        return self.do("execute/sync", {"script": f"return {code}", "args": []})

    def text(self, selector: str) -> str:
        return str(
            self.script(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent).join('|')")
        )

    def element(self, selector: str) -> str:
        return str(self.do("element", {"using": "css selector", "value": selector})[ELEMENT])

    def type(self, selector: str, keys: str) -> None:
        self.do(f"element/{self.element(selector)}/value", {"text": keys})

    def click(self, selector: str) -> None:
        self.do(f"element/{self.element(selector)}/click")

    def press(self, keys: str) -> None:
        """Keys to whatever has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.do("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.http.get(f"{self.base}/screenshot").json()["value"]))

    def close(self) -> None:
        self.http.delete(self.base)
        self.http.close()


@pytest.fixture(scope="module")
def driver() -> Iterator[str]:
    found = shutil.which("chromedriver")
    assert found, "this test needs chromium and chromium-driver: .ci/setup tests installs them"
    process = subprocess.Popen([found, "--port=0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "started successfully on port" in line:
                yield f"http://127.0.0.1:{line.rsplit(' ', 1)[1].strip().rstrip('.')}"
                break
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def page(driver: str, chat: Running) -> Iterator[Page]:
    found = Page(driver, chat.url + "/")
    yield found
    found.close()


@pytest.fixture(scope="module")
def chat() -> Iterator[Running]:
    with running() as found:
        yield found
        found.idle(10)


def sessions_of(server: Running) -> list[dict[str, Any]]:
    return list(server.http.get("/v1/sessions").json()["data"])


def test_a_message_is_sent_by_enter_and_the_answer_streams_in(page: Page, chat: Running) -> None:
    assert page.script("document.activeElement.id") == "input"
    wait_for(lambda: "serving" in page.text("#health") and "chat" in page.text("#model"), 20)
    page.press(json.dumps(script("Hel", "lo ", "you", delay_ms=150)) + ENTER)
    wait_for(lambda: page.text(".assistant") == "Hello you", 30)
    wait_for(lambda: page.script("document.querySelector('#stop').disabled"), 10)
    assert page.script("document.activeElement.id") == "input"
    page.press("a second line?" + ENTER)
    wait_for(lambda: page.text(".assistant") == "Hello you|ok", 30)
    sessions = sessions_of(chat)
    assert [session["turns"] for session in sessions] == [2]
    chat.http.delete(f"/v1/sessions/{sessions[0]['id']}")


def test_a_chat_with_a_model_is_held_and_remembered(driver: str) -> None:
    with running(engine="torch") as speaking:
        page = Page(driver, speaking.url + "/")
        try:
            wait_for(lambda: "serving" in page.text("#health"), 60)
            for turn, says in enumerate(("Hello! My name is Ada.", "What is 12 + 30?", "What is my name?"), start=1):
                page.press(says + ENTER)
                wait_for(lambda turn=turn: [session["turns"] for session in sessions_of(speaking)] == [turn], 60)
                wait_for(lambda: page.script("document.querySelector('#stop').disabled"), 10)
            answers = page.text(".assistant").split("|")
            assert len(answers) == 3
            assert "42" in answers[1]
            assert "Ada" in answers[2]
            if folder := os.environ.get("CAROUSEL_SCREENSHOTS"):
                page.screenshot(Path(folder) / "chat-page.png")
        finally:
            page.close()
        speaking.idle(30)


def test_escape_and_the_button_stop_a_reply(page: Page, chat: Running) -> None:
    for stop in (lambda: page.press(ESCAPE), lambda: page.click("#stop")):
        page.type("#input", json.dumps(script("on and on", then="stall")) + ENTER)
        wait_for(lambda: "on and on" in page.text(".assistant"), 30)
        stop()
        wait_for(lambda: page.text("#status").startswith("Stopped"), 30)
        chat.idle(10)
        page.click("#new")
    assert all(session["turns"] == 0 for session in sessions_of(chat))


def test_a_call_is_shown_and_can_be_answered(page: Page, chat: Running) -> None:
    page.script("document.querySelector('details').open = true")
    page.type("#tools", json.dumps(TOOLS))
    page.type("#input", json.dumps(script("I add.", CALL)) + ENTER)
    wait_for(lambda: page.text(".call").startswith('add({"a":'), 30)
    assert page.text(".assistant") == "I add."
    page.type(".call input", "42" + ENTER)
    wait_for(lambda: "→ 42" in page.text(".call"), 30)
    wait_for(lambda: page.text(".assistant") != "I add.", 30)  # the script answers again
    chat.idle(10)


def test_errors_are_told_in_words(page: Page, chat: Running) -> None:
    page.press("first" + ENTER)
    wait_for(lambda: page.text(".assistant") == "ok", 30)
    for session in sessions_of(chat):
        chat.http.delete(f"/v1/sessions/{session['id']}")
    page.press("second" + ENTER)
    wait_for(lambda: "Start a new one" in page.text(".error"), 30)
    page.script("document.querySelector('details').open = true")
    page.type("#tools", "[not json")
    page.click("#new")
    wait_for(lambda: "tools are not JSON" in page.text("#status"), 30)


def test_sessions_can_be_switched_and_deleted(page: Page, chat: Running) -> None:
    page.press("alpha" + ENTER)
    wait_for(lambda: page.text(".assistant") == "ok", 30)
    page.click("#new")
    wait_for(lambda: page.text(".turn") == "", 10)
    page.type("#input", "beta" + ENTER)
    wait_for(lambda: page.text(".user") == "beta" and page.text(".assistant") == "ok", 30)
    page.click("#sessions li:first-child .name")
    assert page.text(".user") == "alpha"
    page.click("#sessions li:first-child .drop")
    wait_for(lambda: page.text("#sessions .name") == "beta", 10)
    assert page.text(".user") == "beta"


def test_the_page_needs_nothing_from_outside(page: Page, chat: Running) -> None:
    time.sleep(0.5)
    loaded = page.script("performance.getEntriesByType('resource').map(e => e.name)")
    assert loaded
    assert all(name.startswith((chat.url, "data:")) for name in loaded)
    policy = chat.http.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    logs = page.http.post(f"{page.base}/se/log", json={"type": "browser"}).json()["value"]
    assert [entry for entry in logs if entry["level"] == "SEVERE"] == []
