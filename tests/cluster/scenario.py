"""A scenario: something happens to pods while clients hold sessions and streams on them.

A scenario counts only if, when it begins, two committed sessions and one open stream are on the affected pod. Every
answer is judged by traffic.py's rules; the timeline is printed with the counts.
"""

import json
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.cluster.kube import Namespace, inference_server

SOURCE = Path(__file__).with_name("traffic.py")


def scripted_server(name: str, **spec: Any) -> dict[str, Any]:
    """A server on the CPU whose answers, and how long they take, the requests give."""
    engine = {"extraArgs": ["--engine", "scripted"]} | spec.pop("engine", {})
    return inference_server(name, engine=engine, gpu=spec.pop("gpu", {"none": True}), **spec)


class Traffic:
    """The client pod's traffic against one server, as a context manager; `result` is there after it."""

    def __init__(self, namespace: Namespace, server: str, **options: Any) -> None:
        self.namespace = namespace
        self.server = server
        self.options = options
        self.events: list[dict[str, Any]] = []
        self.result: dict[str, Any] = {}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Traffic":
        url = f"http://{self.server}.{self.namespace.name}.svc:8000"
        command = [*self.namespace.cluster.kubectl_command, "-n", self.namespace.name, "exec", "-i", "client", "--"]
        self._process = subprocess.Popen(
            [*command, "python3", "-u", "-c", SOURCE.read_text(), url, json.dumps(self.options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    def settled(self, ordinal: int = 0, seconds: float = 60) -> "Traffic":
        """Wait until two committed sessions and one open stream are on the pod of that ordinal."""

        def holds() -> bool:
            mine = [e for e in list(self.events) if str(e.get("session", "")).startswith(f"{ordinal}.")]
            committed = {e["session"] for e in mine if e["what"] == "turn"}
            open_streams = {e["session"] for e in mine if e["what"] == "stream open"}
            ended = {e["session"] for e in mine if e["what"].startswith(("stream end", "stream broken"))}
            lost = {e["session"] for e in mine if e["what"] == "lost"}
            return len(committed - lost) >= 2 and bool(open_streams - ended)

        self.namespace.wait(f"two sessions and an open stream on {self.server}-{ordinal}", holds, seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self.namespace.run_python("client", "open('/tmp/stop-traffic', 'w').close()")
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        time.sleep(0.1)
        ends = [e for e in self.events if e["what"] == "end"]
        if kind is None and not ends:
            raise AssertionError(f"the traffic did not end by itself: {self.events[-3:]}")
        self.result = ends[0] if ends else {}
        print(json.dumps({"server": self.server, **self.result}))

    def check(self, *, lost: int | None = None) -> None:
        """No answer broke a rule; `lost` sessions were lost, when given."""
        assert self.result["violations"] == [], self.result
        assert self.result["counts"].get("turn 200", 0) > 2, self.result
        if lost is not None:
            found = [e for e in self.events if e["what"] == "lost"]
            assert len(found) == lost, found
