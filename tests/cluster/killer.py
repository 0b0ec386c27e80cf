"""Kills the operator's process the moment that a pod's drain has come to a given step."""

import base64
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import httpx

from tests.cluster.kube import OPERATOR_PODS, SYSTEM, Namespace
from tests.cluster.watch import Object, Watch, process_of

DRAIN = "carousel.dev/drain"


@dataclass
class Sight:
    """Where the drain of one pod stands, by the API server and the pod itself."""

    boot: str
    uid: str
    marks: list[str] = field(default_factory=list)  # of the old pod, each once
    deleting: bool = False
    gone: bool = False
    pods: dict[str, Object] = field(default_factory=dict)  # all others that there were, by uid
    lost: bool = False  # the boot is in the ledger
    replicas: int = 1
    told: Object = field(default_factory=dict)  # the drain that the old pod's server knows of
    was_told: bool = False

    def take(self, found: Object) -> None:
        """Take in one state of a pod."""
        if found["metadata"]["uid"] != self.uid:
            self.pods[found["metadata"]["uid"]] = found
            return
        self.gone = found["gone"]
        self.deleting = "deletionTimestamp" in found["metadata"]
        mark = found["metadata"].get("annotations", {}).get(DRAIN)
        if mark and mark not in self.marks:
            self.marks.append(mark)

    def new_pod(self, condition: str) -> bool:
        """Whether a later pod has this condition."""
        conditions = [c for pod in self.pods.values() for c in pod["status"].get("conditions", [])]
        return any(c["type"] == condition and c["status"] == "True" for c in conditions)

    def __str__(self) -> str:
        words = [("marked", self.marks), ("quiesced", self.told), ("closed", self.told.get("closed")),
                 ("in the ledger", self.lost), (f"replicas {self.replicas}", True), ("terminating", self.deleting),
                 ("gone", self.gone), ("replaced", self.pods), ("new pod ready", self.new_pod("Ready"))]  # fmt: skip
        return ", ".join(word for word, holds in words if holds)


class Killer:
    """A context manager: inside, something starts a drain of the pod 0, and `killed` waits for the kill."""

    def __init__(self, namespace: Namespace, server: str, due: Callable[[Sight], bool]) -> None:
        self.namespace, self.server, self.due = namespace, server, due
        self.pod = namespace.get("pod", f"{server}-0")
        self.sight = Sight(namespace.boot_of(server), self.pod["metadata"]["uid"])
        (self._operator,) = json.loads(
            namespace.cluster.kubectl("-n", SYSTEM, "get", "pods", *OPERATOR_PODS, "-o", "json")
        )["items"]
        self._process = process_of(self._operator, "carousel-operator")
        self._saw = ""  # when it was killed
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._asking = threading.Thread(target=self._ask, daemon=True)
        self._watch = Watch(namespace, self._tell, "pod", "configmap", "statefulset")

    def __enter__(self) -> "Killer":
        self._watch.__enter__()
        self._asking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._watch.__exit__(kind, error, trace)
        self._asking.join(timeout=10)

    def killed(self) -> str:
        """How far the drain was when the operator was killed. Its pod is replaced then, as by a lost node."""
        saw = self.namespace.wait("the step comes", lambda: self._saw, 180)
        name = self._operator["metadata"]["name"]
        self.namespace.cluster.kubectl("-n", SYSTEM, "delete", "pod", name, "--grace-period=0", "--force")
        return saw

    def _tell(self, kind: str, found: Object) -> None:
        with self._lock:
            name, sight = found["metadata"]["name"], self.sight
            if kind == "configmap" and name == f"{self.server}-config":
                sight.lost = any(e["bootId"] == sight.boot for e in json.loads(found["data"]["peers.json"])["lost"])
            elif kind == "statefulset" and name == self.server:
                sight.replicas = found["spec"]["replicas"]
            elif kind == "pod" and name == self.pod["metadata"]["name"]:
                sight.take(found)
            self._judge()

    def _judge(self) -> None:
        if not self._saw and self.due(self.sight):
            os.kill(self._process, signal.SIGKILL)
            self._saw = str(self.sight)

    def _ask(self) -> None:
        """Ask the old pod's admin port again and again."""
        secret = self.namespace.get("secret", f"{self.server}-admin")
        token = base64.b64decode(secret["data"]["token"]).decode()
        url = f"http://{self.pod['status']['podIP']}:8001/admin/state"
        with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=5, trust_env=False) as http:
            while not self._over.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    told = http.get(url).raise_for_status().json()["drain"] or {}
                    with self._lock:
                        self.sight.told, self.sight.was_told = told, self.sight.was_told or bool(told)
                        self._judge()
                time.sleep(0.03)
