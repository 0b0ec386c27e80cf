"""Commands against a cluster: kubectl and helm with time-outs, and the images that were built for it.

Used by the demo and by every cluster test.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "carousel"
CLUSTER_DIR = Path(os.environ.get("CLUSTER_DIR", "/var/lib/carousel-cluster"))
SYSTEM = "carousel-system"
OPERATOR = "deployment/carousel-operator"
OPERATOR_PODS = ("-l", "app.kubernetes.io/name=carousel-operator")
T = TypeVar("T")


class CommandError(Exception):
    """A command failed or did not end in time; the message holds its last words."""


def run(command: Sequence[str | Path], *, timeout: float, stdin: str | None = None, show: bool = False) -> str:
    """Run a command to its end; its output is returned, or shown as it comes. CommandError with its last words."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            stdout=None if show else subprocess.PIPE,
            stderr=None if show else subprocess.PIPE,
            text=True,
            timeout=timeout,
            cwd=ROOT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"gave up after {timeout:.0f} s: {' '.join(words)}") from error
    if done.returncode:
        tail = "" if show else "\n" + (done.stdout[-1500:] + done.stderr[-1500:]).strip()
        raise CommandError(f"exit code {done.returncode}: {' '.join(words)}{tail}")
    return done.stdout or ""


class Cluster:
    """Where the demo runs, and how images get there."""

    def __init__(self, kind: str, kubectl: list[str], helm: list[str]) -> None:
        self.kind = kind
        self.kubectl_command = kubectl
        self.helm_command = helm

    def kubectl(self, *words: str, timeout: float = 30, stdin: str | None = None) -> str:
        return run(
            [*self.kubectl_command, f"--request-timeout={timeout:.0f}s", *words], timeout=timeout + 5, stdin=stdin
        )

    def helm(self, *words: str, timeout: float = 180) -> str:
        return run([*self.helm_command, *words], timeout=timeout)

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))


def tool(name: str, cluster: str) -> str:
    """kubectl or helm: on the PATH, or the one that the local cluster's build made."""
    built = Path(os.environ.get("CAROUSEL_CLUSTER_CACHE", CACHE / "cluster")) / "bin" / name
    found = str(built) if cluster == "local" and built.exists() else shutil.which(name)
    if not found:
        raise CommandError(f"{name} is not on the PATH: install it, or run this where the local cluster is used")
    return found


def image_of(part: str) -> str:
    """The image of a part: CAROUSEL_<PART>_IMAGE, what images.sh wrote, or the development tag."""
    given = os.environ.get(f"CAROUSEL_{part.upper()}_IMAGE")
    if given:
        return given
    tags = Path(os.environ.get("CAROUSEL_IMAGE_CACHE", CACHE / "images")) / "tags.env"
    if tags.exists():
        for line in tags.read_text().splitlines():
            name, _, value = line.partition("=")
            if name == f"{part.upper()}_IMAGE":
                return value
    return f"localhost/carousel/{part}:dev"


def connect(kind: str, context: str | None = None) -> Cluster:
    """The local cluster, the kind cluster `carousel`, or a context of the user's kubeconfig."""
    if kind == "local":
        config = ["--kubeconfig", str(CLUSTER_DIR / "admin.kubeconfig")]
        return Cluster(kind, [tool("kubectl", kind), *config], [tool("helm", kind), *config])
    name = context or "kind-carousel"
    return Cluster(kind, [tool("kubectl", kind), "--context", name], [tool("helm", kind), "--kube-context", name])


def install(cluster: Cluster, *values: str) -> None:
    """Both charts with the built images, and with these values (`namespaces={a}`); or the same again."""
    repository, _, tag = image_of("operator").rpartition(":")
    server_repository, _, server_tag = image_of("server").rpartition(":")
    cluster.helm("upgrade", "--install", "carousel-crds", str(ROOT / "charts/carousel-crds"), "-n", SYSTEM,
                 "--create-namespace")  # fmt: skip
    cluster.helm(
        "upgrade", "--install", "carousel", str(ROOT / "charts/carousel"), "-n", SYSTEM, "--wait", "--timeout", "150s",
        "--set", f"image.repository={repository}", "--set", f"image.tag={tag}",
        "--set", f"serverImage.repository={server_repository}", "--set", f"serverImage.tag={server_tag}",
        *(word for value in values for word in ("--set", value)),
    )  # fmt: skip


@contextlib.contextmanager
def operator_stopped(cluster: Cluster) -> Iterator[None]:
    """No operator runs inside; it comes back after."""
    scale = ["-n", SYSTEM, "scale", OPERATOR]
    cluster.kubectl(*scale, "--replicas=0")
    try:
        cluster.kubectl("-n", SYSTEM, "wait", "pod", *OPERATOR_PODS, "--for=delete", "--timeout=60s", timeout=70)
        yield
    finally:
        cluster.kubectl(*scale, "--replicas=1")
        cluster.kubectl("-n", SYSTEM, "rollout", "status", OPERATOR, "--timeout=90s", timeout=100)


def condition(resource: dict[str, Any], kind: str) -> dict[str, Any]:
    """A condition of a resource by its type, {} when it has none."""
    return next((c for c in resource.get("status", {}).get("conditions", []) if c["type"] == kind), {})


class Namespace:
    """A namespace of its own for one test, with the waits that tests need."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def kubectl(self, *words: str, timeout: float = 30, stdin: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.name, *words, timeout=timeout, stdin=stdin)

    def create(self) -> None:
        self.cluster.kubectl("create", "namespace", self.name)

    def delete(self) -> None:
        self.cluster.kubectl("delete", "namespace", self.name, "--ignore-not-found", "--timeout=120s", timeout=130)

    def end(self) -> None:
        """Begin to delete it, without the time that its pods would take to end in order."""
        self.cluster.kubectl("delete", "namespace", self.name, "--ignore-not-found", "--wait=false")
        self.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def refused(self, *objects: dict[str, Any]) -> str:
        """The API server's words when it refuses the objects; AssertionError when it takes them."""
        try:
            self.apply(*objects)
        except CommandError as error:
            return str(error)
        raise AssertionError(f"the API server took what it should refuse: {objects}")

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", kind, name, "-o", "json")))

    def patch(self, kind: str, name: str, patch: dict[str, Any]) -> None:
        self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(patch))

    def wait(self, what: str, check: Callable[[], T | None], seconds: float = 60) -> T:
        """Until `check` gives something true; AssertionError with what was last seen."""
        deadline = time.monotonic() + seconds
        seen: object = None
        while time.monotonic() < deadline:
            try:
                seen = check()
            except CommandError as error:
                seen = str(error)
            else:
                if seen:
                    return seen
            time.sleep(0.3)
        raise AssertionError(f"{what}: not within {seconds:.0f} s; last seen: {seen}\n{self.story()}")

    def wait_condition(
        self, name: str, kind: str, *, status: str, reason: str = "", seconds: float = 60
    ) -> dict[str, Any]:
        """Until the InferenceServer's condition has this status (and reason) for its newest generation."""

        def holds() -> dict[str, Any] | None:
            found = self.get("infsrv", name)
            has = condition(found, kind)
            current = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
            return found if current and has.get("status") == status and reason in ("", has.get("reason")) else None

        return self.wait(f"{name} {kind}={status} {reason}", holds, seconds)

    def pods_of(self, server: str) -> list[dict[str, Any]]:
        """`status.pods` of an InferenceServer."""
        return list(self.get("infsrv", server).get("status", {}).get("pods", []))

    def boot_of(self, server: str, ordinal: int = 0) -> str:
        """The boot id that the status has for this pod, "" while it has none."""
        pods = {pod["name"]: pod for pod in self.pods_of(server)}
        return str(pods.get(f"{server}-{ordinal}", {}).get("bootId", ""))

    def ready(self, server: str, seconds: float = 240) -> dict[str, Any]:
        """The InferenceServer once it is Ready."""
        return self.wait_condition(server, "Ready", status="True", seconds=seconds)

    def serving_boot(self, server: str, ordinal: int = 0) -> str:
        """The boot id of this pod once the InferenceServer is Ready."""
        self.ready(server)
        return self.boot_of(server, ordinal)

    def other_boot(self, server: str, boot: str, ordinal: int = 0, seconds: float = 240) -> dict[str, Any]:
        """The entry of `status.pods` once the pod serves with another boot than this one."""

        def replaced() -> dict[str, Any] | None:
            mine = [pod for pod in self.pods_of(server) if pod["name"] == f"{server}-{ordinal}"]
            return next((p for p in mine if p.get("bootId", "") not in ("", boot) and p["state"] == "Serving"), None)

        return self.wait(f"{server}-{ordinal} serves with another boot than {boot}", replaced, seconds)

    def story(self) -> str:
        """What a person would look at first, for the message of a failed test."""
        parts = []
        for words in (["get", "infsrv,pods", "-o", "wide"], ["get", "infsrv", "-o", "jsonpath={.items[*].status}"]):
            try:
                parts.append(self.kubectl(*words))
            except CommandError as error:
                parts.append(str(error))
        return "\n".join(parts)

    def run_python(self, pod: str, source: str, *words: str, timeout: float = 60) -> str:
        """Run a script with the python3 of a pod and return what it printed."""
        return self.kubectl("exec", "-i", pod, "--", "python3", "-", *words, stdin=source, timeout=timeout)


KILL = """
import os, signal, time
for _ in range(3):
    os.kill(1, signal.SIGTERM)
    time.sleep(0.05)
"""


def kill_server(namespace: Namespace, pod: str) -> None:
    """End the pod's server at once, as a crash would: a second SIGTERM leaves it no time."""
    with contextlib.suppress(CommandError):  # the command ends with the container
        namespace.run_python(pod, KILL)


def client_pod(image: str) -> dict[str, Any]:
    """A pod that does nothing until something is executed in it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "client",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-c", "import time; time.sleep(86400)"],
                }
            ],
        },
    }


def inference_server(name: str, **spec: Any) -> dict[str, Any]:
    """An InferenceServer of the embedded model with quick drains, and `spec` over it."""
    base: dict[str, Any] = {
        "model": {"source": {"embedded": {}}, "preset": "tiny"},
        "image": {"reference": image_of("server"), "pullPolicy": "IfNotPresent"},
        "resources": {"cpu": "100m"},
        "drain": {"idleGrace": "3s", "sessionTimeout": "60s", "requestTimeout": "20s"},
    }
    return {
        "apiVersion": "carousel.dev/v1alpha1",
        "kind": "InferenceServer",
        "metadata": {"name": name},
        "spec": base | spec,
    }
