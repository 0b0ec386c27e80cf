"""Commands against a cluster: kubectl and helm with time-outs, and the images that were built for it.

Used by the demo and by every cluster test.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "carousel"
CLUSTER_DIR = Path(os.environ.get("CLUSTER_DIR", "/var/lib/carousel-cluster"))


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
    built = CACHE / "cluster" / "bin" / name
    found = str(built) if cluster == "local" and built.exists() else shutil.which(name)
    if not found:
        raise CommandError(f"{name} is not on the PATH: install it, or run this where the local cluster is used")
    return found


def image_of(part: str) -> str:
    """The image of a part: CAROUSEL_<PART>_IMAGE, what images.sh wrote, or the development tag."""
    given = os.environ.get(f"CAROUSEL_{part.upper()}_IMAGE")
    if given:
        return given
    tags = CACHE / "images" / "tags.env"
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
