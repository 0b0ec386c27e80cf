"""`make demo`: a chat answered by a pod that the operator made from an InferenceServer, and what a restart does to it.

Fails unless the second answer holds the fact of the first turn, the tool ran, the boot ids differ and the 410 names
the restart as its cause.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from tests.cluster.kube import (
    CLUSTER_DIR,
    ROOT,
    SYSTEM,
    Cluster,
    CommandError,
    client_pod,
    condition,
    connect,
    image_of,
    install,
    run,
)

HERE = Path(__file__).resolve().parent
NAMESPACE = "carousel-demo"
SERVER = "chat"
SAMPLE = ROOT / "manifests/samples/embedded.yaml"
URL = f"http://{SERVER}.{NAMESPACE}.svc:8000"


class DemoError(Exception):
    """A step did not do what it promises; the message is for people."""


class Transcript:
    """One line a step, with its time and the total."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.steps: list[tuple[str, float]] = []

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        begun = time.monotonic()
        print(f"{begun - self.start:7.1f}s  {title} …", flush=True)
        yield
        self.steps.append((title, time.monotonic() - begun))
        print(f"{time.monotonic() - self.start:7.1f}s  {title}: done in {self.steps[-1][1]:.1f} s", flush=True)

    def say(self, text: str) -> None:
        for line in text.rstrip().splitlines():
            print(f"          {line}", flush=True)


def find_cluster(asked: str | None, context: str | None) -> str:
    """`context` or what else was asked for, else `kind` where Docker works, else `local`."""
    if context:
        return "context"
    if asked:
        return asked
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "info"], capture_output=True, timeout=20, check=False).returncode == 0:
        return "kind"
    return "local"


def prepare_cluster(where: str, context: str | None, log: Transcript) -> Cluster:
    """Bring the cluster up, build the images and put them into it."""
    if where == "local":
        with log.step("Kubernetes from Go modules (minutes when its cache is empty, seconds after)"):
            run([HERE / "kit" / "build.sh"], timeout=3000, show=True)
        with log.step("two-node cluster with fake GPUs"):
            run([HERE / "kit" / "up.sh"], timeout=600, show=True)
        with log.step("images"):
            run([HERE / "images.sh", "load"], timeout=2400, show=True)
    if where == "kind":
        kind = shutil.which("kind") or "kind"
        with log.step("kind cluster"):
            if "carousel" not in run([kind, "get", "clusters"], timeout=60).split():
                run([kind, "create", "cluster", "--name", "carousel", "--wait", "180s"], timeout=400, show=True)
        with log.step("images with Docker"):
            for part in ("server", "operator"):
                image = image_of(part)
                run(["docker", "build", "-f", f"{part}/Containerfile", "-t", image, "."], timeout=2400, show=True)
                run([kind, "load", "docker-image", image, "--name", "carousel"], timeout=900, show=True)
    return connect(where, context)


def apply_sample(cluster: Cluster) -> None:
    phase = cluster.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "jsonpath={.status.phase}")
    if phase.strip() == "Terminating":
        cluster.kubectl("wait", f"namespace/{NAMESPACE}", "--for=delete", "--timeout=200s", timeout=210)
    if phase.strip() != "Active":
        cluster.kubectl("create", "namespace", NAMESPACE)
    sample = yaml.safe_load(SAMPLE.read_text())
    sample["spec"]["image"]["reference"] = image_of("server")
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(sample))


def wait_ready(cluster: Cluster, log: Transcript, *, seconds: float, differs_from: str = "") -> dict[str, Any]:
    """Until the server is Ready at its own generation, telling each change of reason. Returns the resource."""
    deadline = time.monotonic() + seconds
    told = ""
    while time.monotonic() < deadline:
        found = cluster.get("infsrv", SERVER, "-n", NAMESPACE)
        ready = condition(found, "Ready")
        line = f"{ready.get('reason', 'no status yet')}: {ready.get('message', '')}"
        if line != told:
            log.say(line)
            told = line
        status = found.get("status", {})
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        boots = [pod.get("bootId") for pod in status.get("pods", [])]
        if ready.get("status") == "True" and current and boots and all(boots) and differs_from not in boots:
            return dict(found)
        time.sleep(0.5)
    raise DemoError(f"not Ready after {seconds:.0f} s; the last reason was {told}")


def start_client(cluster: Cluster) -> None:
    pod = client_pod(image_of("server"))
    cluster.kubectl("delete", "pod", "client", "-n", NAMESPACE, "--ignore-not-found", "--now", timeout=60)
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(pod))
    cluster.kubectl("wait", "pod/client", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=60s", timeout=70)


def client(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    source = (HERE / "demo_client.py").read_text()
    out = cluster.kubectl(
        "exec", "-i", "client", "-n", NAMESPACE, "--", "python3", "-", *words, stdin=source, timeout=120
    )
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise DemoError(f"expected {what}")


def hold_chat(cluster: Cluster, log: Transcript) -> str:
    findings = client(cluster, "chat", URL)
    for f in findings:
        if f["what"] == "turn":
            log.say(f"user: {f['user']}\nassistant ({f['pieces']} pieces): {f['assistant']}")
        elif f["what"] == "call":
            log.say(f"user: {f['user']}\ncalls: {json.dumps(f['calls'])}")
        elif f["what"] == "result":
            log.say(f"tool result: {json.dumps(f['tool'])}\nassistant: {f['assistant']}")
    turns = [f for f in findings if f["what"] == "turn"]
    expect(len(turns) == 2 and "Mara" in turns[1]["assistant"], "the second answer to hold the name of the first turn")
    result = next(f for f in findings if f["what"] == "result")
    expect(str(result["tool"]["temperature"]) in result["assistant"], "the answer to hold the tool's result")
    session = str(next(f for f in findings if f["what"] == "session")["id"])
    log.say(f"session {session}")
    return session


def restart(cluster: Cluster, log: Transcript, boot: str) -> dict[str, Any]:
    patch = {"spec": {"restart": {"id": f"demo-{int(time.time())}", "reason": "demo"}}}
    cluster.kubectl("patch", "infsrv", SERVER, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(patch))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = cluster.get("infsrv", SERVER, "-n", NAMESPACE)
        if any(pod.get("drain") for pod in found.get("status", {}).get("pods", [])):
            log.say("$ kubectl get infsrv -o wide\n" + cluster.kubectl("get", "infsrv", "-n", NAMESPACE, "-o", "wide"))
            break
        time.sleep(0.3)
    else:
        raise DemoError("the change of restart.id started no drain within 30 s")
    return wait_ready(cluster, log, seconds=180, differs_from=boot)


def check_lost(cluster: Cluster, log: Transcript, session: str) -> None:
    answer = client(cluster, "ask", URL, session)[0]
    log.say(f"the old session's next turn: {answer['status']} {json.dumps(answer['body'])}")
    error = answer["body"].get("error", {})
    expect(answer["status"] == 410 and error.get("code") == "session_lost", "410 session_lost")
    expect(error.get("cause") == "restart", f"the cause restart, not {error.get('cause')}")


def clean_up(cluster: Cluster | None, where: str, *, keep_cluster: bool) -> None:
    """Remove what the demo made. Every call has a time-out, so this ends."""
    if where == "local" and not keep_cluster:
        with contextlib.suppress(CommandError):
            run([HERE / "kit" / "down.sh"], timeout=120)
    elif cluster is not None:
        # pods first: a namespace that still has some looks for them again only after their grace period
        for words in (
            ("delete", "infsrv", SERVER, "--cascade=foreground", "-n", NAMESPACE),
            ("delete", "pod", "client", "--now", "-n", NAMESPACE),
            ("delete", "namespace", NAMESPACE),
        ):
            with contextlib.suppress(CommandError):
                cluster.kubectl(*words, "--ignore-not-found", "--timeout=60s", timeout=70)
        for release in ("carousel", "carousel-crds"):
            with contextlib.suppress(CommandError):
                cluster.helm("uninstall", release, "-n", SYSTEM, "--ignore-not-found", timeout=60)


def next_steps(cluster: Cluster) -> str:
    kubectl = " ".join(cluster.kubectl_command)
    lines = [
        "Look around:",
        f"  alias k='{kubectl}'",
        f"  k get infsrv -n {NAMESPACE} -o wide",
        f"  k describe infsrv {SERVER} -n {NAMESPACE}",
        f"  k port-forward -n {NAMESPACE} svc/{SERVER} 8000",
        "  curl -s localhost:8000/v1/chat/completions -H 'content-type: application/json' \\",
        '    -d \'{"model":"chat","messages":[{"role":"user","content":"What is the capital of Portugal?"}]}\'',
        "  .venv/bin/carousel-server chat --url http://localhost:8000",
        "  OpenAI client: OpenAI(base_url='http://localhost:8000/v1', api_key='none')",
        "Remove everything: make demo-clean" + (" (and make cluster-down)" if cluster.kind == "local" else ""),
    ]
    return "\n".join(lines)


def interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--context", default=os.environ.get("CONTEXT"), help="use this kubeconfig context")
    parser.add_argument("--cluster", choices=("kind", "local"), default=os.environ.get("CLUSTER"), help="make this one")
    parser.add_argument("--clean", action="store_true", help="only remove what an earlier demo left")
    options = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first unless it is told
        signal.signal(number, interrupted)
    log = Transcript()
    where = find_cluster(options.cluster, options.context)
    cluster: Cluster | None = None
    was_up = (CLUSTER_DIR / "admin.kubeconfig").exists()
    try:
        if options.clean:
            if where != "local" or was_up:
                clean_up(connect(where, options.context), where, keep_cluster=True)
            return 0
        cluster = prepare_cluster(where, options.context, log)
        with log.step("helm install carousel-crds and carousel"):
            install(cluster)
        with log.step("kubectl apply -f manifests/samples/embedded.yaml, until it is Ready"):
            apply_sample(cluster)
            ready = wait_ready(cluster, log, seconds=240)
            start_client(cluster)
        log.say("$ kubectl get infsrv\n" + cluster.kubectl("get", "infsrv", "-n", NAMESPACE))
        boot = ready["status"]["pods"][0]["bootId"]
        with log.step("a chat with a session and a tool call, from inside the cluster"):
            session = hold_chat(cluster, log)
        with log.step("a drained restart (spec.restart.id changes)"):
            again = restart(cluster, log, boot)
        new_boot = again["status"]["pods"][0]["bootId"]
        expect(new_boot != boot, "another boot id after the restart")
        log.say(f"boot {boot} -> {new_boot}")
        with log.step("the lost session is told so"):
            check_lost(cluster, log, session)
    except KeyboardInterrupt:
        print("\ninterrupted: cleaning up", flush=True)
        clean_up(cluster, where, keep_cluster=was_up)
        return 130
    except (DemoError, CommandError) as error:
        print(f"\ndemo failed: {error}\nIt is left as it is, to look at; make demo-clean removes it.", file=sys.stderr)
        return 1
    total = time.monotonic() - log.start
    print(f"\nDone in {total:.0f} s: " + ", ".join(f"{title.split(' (')[0]} {s:.0f} s" for title, s in log.steps))
    print(next_steps(cluster))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
