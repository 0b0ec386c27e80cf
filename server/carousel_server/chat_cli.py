"""`carousel-server chat`: a conversation in the terminal, against a running server or one that it starts itself."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, TextIO

import httpx

HELP = "Commands: /new starts a new session, /show tells about this one, /quit ends. Ctrl-C stops an answer."


class ChatError(Exception):
    """The server said no, or is not there; the message is for people."""


class Chat:
    """One session on a server; speaks HTTP only."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(10.0, read=60.0))
        self.session_id = ""

    def open(self) -> str:
        """Start a session and return its id."""
        self.session_id = str(self._ok(self._http.post("/v1/sessions", json={}))["id"])
        return self.session_id

    def show(self) -> dict[str, Any]:
        """What the server tells of the session."""
        return self._ok(self._http.get(f"/v1/sessions/{self.session_id}"))

    def say(self, text: str) -> Iterator[str]:
        """One turn, streamed: yields pieces of the answer. Ctrl-C inside it cancels the turn; history is unchanged."""
        body = {
            "model": "chat",
            "session_id": self.session_id,
            "messages": [{"role": "user", "content": text}],
            "stream": True,
        }
        request_id = ""
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    self._ok(response)
                for line in response.iter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise ChatError(event["error"]["message"])
                    request_id = event.get("id", request_id)
                    for choice in event.get("choices", []):
                        yield choice["delta"].get("content") or ""
        except KeyboardInterrupt:
            if request_id:
                self._http.post(f"/v1/requests/{request_id}/cancel")
            yield " (stopped)"
        except httpx.HTTPError as error:
            raise ChatError(f"the connection failed: {error}") from error

    @staticmethod
    def _ok(response: httpx.Response) -> dict[str, Any]:
        if response.is_success:
            return dict(response.json())
        try:
            message = response.json()["error"]["message"]
        except (ValueError, KeyError):
            message = response.text[:200]
        raise ChatError(f"{response.status_code}: {message}")


def converse(chat: Chat, lines: TextIO, out: TextIO, *, prompt: bool) -> None:
    """Read user lines until the end of input or /quit, and print the answers as they come."""
    chat.open()
    while True:
        if prompt:
            out.write("\n> ")
            out.flush()
        line = lines.readline()
        text = line.strip()
        if not line or text == "/quit":
            return
        if not prompt and text:
            out.write(f"\n> {text}\n")
        if text == "/new":
            out.write(f"session {chat.open()}\n")
        elif text == "/show":
            out.write(json.dumps(chat.show(), indent=1) + "\n")
        elif text.startswith("/"):
            out.write(HELP + "\n")
        elif text:
            for piece in chat.say(text):
                out.write(piece)
                out.flush()
            out.write("\n")


def start_server(arguments: list[str], log: TextIO) -> tuple[subprocess.Popen[str], str]:
    """A server on a free port of this machine, and its URL once it is ready. Raises ChatError when it ends instead."""
    command = [sys.executable, "-m", "carousel_server", "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--admin-port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    assert process.stdout is not None
    for line in process.stdout:
        if '"listening"' not in line:
            continue
        url = f"http://127.0.0.1:{json.loads(line)['port']}"
        if _ready(process, url):
            return process, url
        break
    code = process.wait(timeout=30)
    log.seek(0)
    raise ChatError(f"the server ended with exit code {code}:\n{log.read()[-2000:]}")


def _ready(process: subprocess.Popen[str], url: str) -> bool:
    with httpx.Client(base_url=url, timeout=10.0, transport=httpx.HTTPTransport(retries=3)) as http:
        while process.poll() is None:
            if http.get("/health").status_code == 200:
                return True
            time.sleep(0.1)
    return False


def main(argv: list[str]) -> int:
    """Exit code 0 after a conversation, 1 when the server is missing or refuses."""
    parser = argparse.ArgumentParser(prog="carousel-server chat", description=__doc__, epilog=HELP)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:8000; without it one is started")
    parser.add_argument(
        "--model", default="embedded", help="model of the server that is started (default: %(default)s)"
    )
    parser.add_argument("--api-key", help="API key, where the server asks for one")
    options = parser.parse_args(argv)
    try:
        if options.url is not None:
            converse(Chat(options.url, options.api_key), sys.stdin, sys.stdout, prompt=sys.stdin.isatty())
        else:
            with tempfile.TemporaryFile("w+") as log:  # what the server logs is shown only when it ends by itself
                converse_with_own_server(options.model, options.api_key, log)
    except (ChatError, httpx.HTTPError) as error:
        print(f"chat: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


def converse_with_own_server(model: str, api_key: str | None, log: TextIO) -> None:
    """A conversation with a server that lives as long as it."""
    print("Starting a server on this machine …", flush=True)
    process, url = start_server(["--model", model], log)
    try:
        print(f"Ready at {url}. {HELP}", flush=True)
        converse(Chat(url, api_key), sys.stdin, sys.stdout, prompt=sys.stdin.isatty())
    finally:
        process.terminate()
        process.wait(timeout=30)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
