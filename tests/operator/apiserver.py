"""A real API server for a test: etcd and kube-apiserver on free ports of 127.0.0.1, in a temporary folder.

CRDs, defaulting, CEL, pruning, RBAC, server-side apply and the status and scale subresources are real; there is no
node, and controllers only where a test asks for them. Ready in about three seconds.
"""

import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

Object = dict[str, Any]
START_SECONDS = 180  # three are enough on an idle machine
TOKEN = "admin-of-this-test"


def binaries() -> Path:
    """The folder with etcd, kube-apiserver, kubectl and helm that `tests/cluster/kit/build.sh` fills."""
    cache = os.environ.get("CAROUSEL_CLUSTER_CACHE")
    base = Path(cache) if cache else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "carousel/cluster"
    if not (base / "bin/kube-apiserver").exists():
        raise FileNotFoundError(f"{base}/bin/kube-apiserver is not there: run tests/cluster/kit/build.sh first")
    return base / "bin"


def helm(*args: str) -> str:
    """Output of the helm that belongs to the cluster. Raises CalledProcessError with its words in `stderr`."""
    done = subprocess.run([binaries() / "helm", *args], text=True, capture_output=True, timeout=60)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stdout + done.stderr)
    return done.stdout


class Refused(Exception):
    """A request or a kubectl failed; the text is what it said."""


class ApiServer:
    """A running API server and kubectl against it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.kubeconfig = folder / "kubeconfig"
        self._http: httpx.Client | None = None

    @property
    def url(self) -> str:
        """Base URL; clients authenticate with `TOKEN` and trust `ca`."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        """The certificate that the server made for itself."""
        return self.folder / "certs/apiserver.crt"

    def kubectl(self, *args: str, stdin: str | None = None, timeout: float = 120) -> str:
        """Output of kubectl. Raises Refused."""
        to_here = ("--kubeconfig", str(self.kubeconfig), f"--request-timeout={timeout:.0f}s")
        command = [str(binaries() / "kubectl"), *to_here, *args]
        done = subprocess.run(command, input=stdin, text=True, capture_output=True, timeout=timeout + 5)
        if done.returncode:
            raise Refused(done.stderr.strip())
        return done.stdout

    def get(self, *args: str) -> Any:
        """`kubectl get ... -o json`, parsed."""
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def call(self, method: str, path: str, body: Object | None = None, *, content: str = "application/json") -> Object:
        """One request as administrator, without kubectl's start-up. Raises Refused with the server's message."""
        if self._http is None:
            context = ssl.create_default_context(cafile=str(self.ca))
            headers = {"Authorization": f"Bearer {TOKEN}"}
            self._http = httpx.Client(base_url=self.url, verify=context, headers=headers, timeout=120, trust_env=False)
        data = None if body is None else json.dumps(body)
        answer = self._http.request(method, path, content=data, headers={"Content-Type": content})
        if answer.is_error:
            is_json = answer.headers.get("Content-Type", "").startswith("application/json")
            raise Refused(answer.json()["message"] if is_json else answer.text)
        found: Object = answer.json()
        return found

    def apply(self, objects: Object | Sequence[Object], *flags: str, manager: str = "test") -> str:
        """Server-side apply of whole objects. Raises Refused."""
        every = [objects] if isinstance(objects, dict) else list(objects)
        # JSON, because kubectl reads the YAML word y as true.
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": every})
        return self.kubectl("apply", "--server-side", f"--field-manager={manager}", *flags, "-f", "-", stdin=text)


@contextmanager
def running(*, controllers: bool = False) -> Iterator[ApiServer]:
    """An API server for the time of the block; `controllers` adds garbage collection and workloads."""
    folder = Path(tempfile.mkdtemp(prefix="carousel-api-"))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield _start(folder, processes, controllers)
    finally:
        for process in reversed(processes):
            process.kill()  # the data goes too, and a polite end of kube-apiserver takes ten seconds
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, processes: list[subprocess.Popen[bytes]], controllers: bool) -> ApiServer:
    here = binaries()
    client, peer, port = _free_ports(3)
    key = folder / "service-account.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")

    def spawn(name: str, *args: str) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            processes.append(subprocess.Popen([here / name, *args], stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    etcd, etcd_peer = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    spawn(
        "etcd",
        *("--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--log-level=error"),
        *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
        *("--listen-peer-urls", etcd_peer, "--initial-advertise-peer-urls", etcd_peer),
        *("--initial-cluster", f"default={etcd_peer}"),
    )
    spawn(
        "kube-apiserver",
        *("--etcd-servers", etcd, "--bind-address=127.0.0.1", f"--secure-port={port}"),
        *("--cert-dir", str(folder / "certs"), "--service-cluster-ip-range=10.96.0.0/16"),
        *("--authorization-mode=RBAC", "--token-auth-file", str(folder / "tokens.csv")),
        *("--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file", str(key)),
        *("--service-account-signing-key-file", str(key), "--watch-cache=true"),
    )
    server = ApiServer(folder, port)
    deadline = time.monotonic() + START_SECONDS
    while not _ready(server):
        ended = next((p for p in processes if p.poll() is not None), None)
        if ended or time.monotonic() > deadline:
            logs = "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in folder.glob("*.log"))
            raise RuntimeError(f"the API server did not start within {START_SECONDS} s\n{logs}")
        time.sleep(0.1)
    if controllers:
        spawn(
            "kube-controller-manager", "--kubeconfig", str(server.kubeconfig), "--secure-port=0", "--leader-elect=false"
        )
    return server


def _ready(server: ApiServer) -> bool:
    if not server.ca.exists():
        return False
    cluster = {"server": server.url, "certificate-authority": str(server.ca)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "current-context": "test",
    }
    server.kubeconfig.write_text(json.dumps(config))
    try:
        server.call("GET", "/api/v1/namespaces/default")
    except (Refused, httpx.HTTPError, ssl.SSLError):
        return False
    return True


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
