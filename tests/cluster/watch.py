"""What the API server says of a namespace's objects, as it happens, and processes of pods as this machine sees them.

A watch is told of a write within milliseconds, so a test can act between two steps of the operator.
"""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from tests.cluster.kube import Namespace

Object = dict[str, Any]
PATHS = {
    "infsrv": "/apis/carousel.dev/v1alpha1/namespaces/{}/inferenceservers",
    "statefulset": "/apis/apps/v1/namespaces/{}/statefulsets",
    "pod": "/api/v1/namespaces/{}/pods",
    "configmap": "/api/v1/namespaces/{}/configmaps",
}
WORDS = "Starting to serve on "


class Watch:
    """Calls `tell(kind, object)` for each object of these kinds and each change; a deleted one has `gone: True`.

    A context manager. `tell` is called by one thread for each kind; what it raises ends the watch of that kind.
    """

    def __init__(self, namespace: Namespace, tell: Callable[[str, Object], None], *kinds: str) -> None:
        self._namespace = namespace
        self._tell = tell
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._follow, args=(kind,), daemon=True) for kind in kinds]
        self._url = ""

    def __enter__(self) -> "Watch":
        command = [*self._namespace.cluster.kubectl_command, "proxy", "--port=0"]
        self._proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._proxy.stdout
        self._url = "http://" + self._proxy.stdout.readline().strip().removeprefix(WORDS)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._proxy.terminate()
        self._proxy.communicate(timeout=10)
        for thread in self._threads:
            thread.join(timeout=10)

    def _follow(self, kind: str) -> None:
        path = PATHS[kind].format(self._namespace.name)
        with httpx.Client(base_url=self._url, timeout=None, trust_env=False) as http:
            while not self._over.is_set():
                with contextlib.suppress(httpx.HTTPError), http.stream("GET", path, params={"watch": "1"}) as answer:
                    for line in answer.iter_lines():
                        event = json.loads(line)
                        self._tell(kind, event["object"] | {"gone": event["type"] == "DELETED"})
                time.sleep(0.2)


def process_of(pod: Object, word: str) -> int:
    """The id, on this machine, of the process of a pod of either node whose command line has this word.

    The first of its container; AssertionError when there is none.
    """
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
        with contextlib.suppress(OSError):
            if pod["metadata"]["uid"] in (folder / "cgroup").read_text() and word in (folder / "cmdline").read_text():
                return int(folder.name)
    raise AssertionError(f"no process with {word!r} runs in pod {pod['metadata']['name']}")
