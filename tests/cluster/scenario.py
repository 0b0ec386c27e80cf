"""A scenario: something happens to pods while clients hold sessions and streams on them.

A scenario counts only if, when it begins, two committed sessions and one open stream are on the affected pod. Every
answer is judged by traffic.py's rules; the counts are printed, and kept with the timeline by keeping.py.
"""

import contextlib
import json
import time
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.cluster import keeping
from tests.cluster.kube import CommandError, Namespace, inference_server

SOURCE = Path(__file__).with_name("traffic.py")
LOG = "/tmp/traffic.log"
START = f"""
import os, pathlib, signal, subprocess, sys
source, *words = sys.argv[1:]
pathlib.Path('/tmp/stop-traffic').unlink(missing_ok=True)
record = pathlib.Path('/tmp/traffic.pid')
if record.exists():  # of a scenario that failed, and whose traffic could not be told to stop
    try:
        os.kill(int(record.read_text()), signal.SIGKILL)
    except ProcessLookupError:
        pass
log = open('{LOG}', 'w')
command = [sys.executable, '-u', '-c', source, *words]
process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
record.write_text(str(process.pid))
"""


QUICK = {"idleGrace": "2s", "sessionTimeout": "6s", "requestTimeout": "20s"}


def scripted_server(name: str, **spec: Any) -> dict[str, Any]:
    """A server on the CPU, with drains of seconds, whose answers, and how long they take, the requests give."""
    engine = {"extraArgs": ["--engine", "scripted"]} | spec.pop("engine", {})
    return inference_server(name, **({"engine": engine, "gpu": {"none": True}, "drain": QUICK} | spec))


class Traffic:
    """The client pod's traffic against one server, as a context manager; `result` is there after it.

    It runs detached in the pod and writes to a file there, so that it outlives a connection through the API server.
    """

    def __init__(self, namespace: Namespace, server: str, **options: Any) -> None:
        self.namespace = namespace
        self.server = server
        self.options = options
        self.result: dict[str, Any] = {}
        self._seen: list[dict[str, Any]] = []
        self._noted: list[dict[str, Any]] = []
        self._began = 0.0

    def __enter__(self) -> "Traffic":
        url = f"http://{self.server}.{self.namespace.name}.svc:8000"
        self._began = time.time()  # before the client's imports, which take long on a busy machine
        options = json.dumps(self.options | {"began": self._began})
        self.namespace.run_python("client", START, SOURCE.read_text(), url, options)
        return self

    def note(self, what: str) -> None:
        """Put what the test does into the timeline."""
        self._noted.append({"who": "test", "what": what, "at": time.time() - self._began})

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the traffic has said so far; the last that was read while the API server is away."""
        with contextlib.suppress(CommandError):
            lines = self.namespace.kubectl("exec", "client", "--", "cat", LOG).splitlines()
            self._seen = [json.loads(line) for line in lines if line.endswith("}")]
        return self._seen

    def settled(self, ordinal: int = 0, seconds: float = 60) -> "Traffic":
        """Wait until two committed sessions and one open stream are on the pod of that ordinal."""

        def holds() -> bool:
            mine = [e for e in self.events if str(e.get("session", "")).startswith(f"{ordinal}.")]
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
        self.namespace.run_python("client", "open('/tmp/stop-traffic', 'w').close()")
        ends = self.namespace.wait(
            "the traffic ends", lambda: [e for e in self.events if e["what"] == "end"], seconds=60
        )
        self.result = ends[0]
        print(json.dumps({"server": self.server, **self.result}))
        self._keep()

    def _keep(self) -> None:
        counts = ", ".join(f"{kind}: {count}" for kind, count in sorted(self.result["counts"].items()))
        causes = ", ".join(f"{cause}: {count}" for cause, count in self.result["causes"].items()) or "none"
        head = [f"answers  {counts}", f"410      {causes}", f"broken rules: {self.result['violations'] or 'none'}", ""]
        client = [event for event in self.events if event["what"] != "end"]
        keeping.keep(keeping.running_test(), head + keeping.timeline([*client, *self._noted, *self._operator_events()]))

    def _operator_events(self) -> list[dict[str, Any]]:
        """The Events of the InferenceServer since the traffic began."""
        found = []
        for event in json.loads(self.namespace.kubectl("get", "events", "-o", "json"))["items"]:
            told = event.get("eventTime") or event["lastTimestamp"]
            at = datetime.fromisoformat(told).timestamp() - self._began
            if event["involvedObject"]["name"] == self.server and at >= 0:
                found.append({"who": "operator", "what": f"{event['reason']}: {event['message']}", "at": at})
        return found

    def check(self, *, lost: int | None = None) -> None:
        """No answer broke a rule; `lost` sessions were lost, when given."""
        assert self.result["violations"] == [], self.result
        assert self.result["counts"].get("turn 200", 0) > 2, self.result
        if lost is not None:
            found = [e for e in self.events if e["what"] == "lost"]
            assert len(found) == lost, found
