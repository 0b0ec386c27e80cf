"""Every reason that a status can print, brought about on the real cluster. results/reasons.txt has the messages."""

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import carousel_server
import pytest
from carousel_operator import names

from tests.cluster import keeping
from tests.cluster.kube import CLUSTER_DIR, CommandError, Namespace, inference_server
from tests.cluster.scenario import scripted_server
from tests.cluster.test_model_from_hub import from_hub, start_hub
from tests.cluster.volumes import volumes_of
from tests.cluster.watch import Object, Watch, process_of

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(600)]

HOW = {  # reason: the InferenceServer that shows it, and what was done to it
    "PullingImage": ("life", "a new InferenceServer"),
    "LoadingModel": ("life", "a new InferenceServer"),
    "Serving": ("life", "its server has loaded the model"),
    "Resizing": ("life", "resources.cpu is changed"),
    "Draining": ("life", "engine.drafts is changed while a session is in use"),
    "RollingOut": ("life", "engine.drafts is changed: the new pod comes up"),
    "NewRevisionFailing": ("life", "engine.extraArgs gets a flag that no server knows"),
    "Suspended": ("life", "spec.suspend"),
    "WaitingForGPU": ("greedy", "a device that no node has"),
    "ImagePullFailed": ("imageless", "an image that is nowhere"),
    "SecretMissing": ("keyless", "a Secret of API keys that is not there"),
    "LimitsDoNotFit": ("oversize", "the config.json of its claim is of a far larger model than its preset: exit 78"),
    "InvalidSpec": ("flag", "a flag that no server knows: exit 64"),
    "ModelMissing": ("modelless", "the volume of its claim is empty: exit 66"),
    "CrashLooping": ("crashing", "PYTHONHOME names a folder that is not there: exit 1 again and again"),
    "DownloadingModel": ("download", "a model from a hub, which sends it slowly"),
    "GPUUnhealthy": ("device", "the scripted engine loses its device in a request: exit 70"),
    "GPUOutOfMemory": ("memory", "the scripted engine's device is out of memory in a request: exit 71"),
    "HostOutOfMemory": ("hungry", "other processes in the container take memory up to its limit"),
    "AdminUnreachable": ("silent", "the server's process is stopped (SIGSTOP)"),
    "NodeLost": ("far", "the kubelet of its node is stopped (SIGSTOP)"),
}
CONFIG = Path(carousel_server.__file__).parent / "embedded" / "config.json"
ASK = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"content-type": "application/json"})
try:
    print(urllib.request.urlopen(request, timeout=30).read().decode())
except OSError as error:
    print(error)
"""
HUNGER = """
import os, time
open("/proc/1/oom_score_adj", "w").write("1000")  # the kernel ends the server: each of these processes is small
while True:
    if os.fork() == 0:
        held = b"x" * 2**26
        time.sleep(600)
    time.sleep(0.1)
"""


class Seen:
    """Each reason that each InferenceServer has shown, with the condition and its message."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.found: dict[tuple[str, str], str] = {}

    def tell(self, kind: str, found: Object) -> None:
        """Take in a status; what the condition Ready says comes before what others say."""
        for condition in found.get("status", {}).get("conditions", []):
            key = found["metadata"]["name"], condition["reason"]
            told = f"{condition['type']}={condition['status']}: {' '.join(condition['message'].split())}"
            if key not in self.found or (condition["type"] == "Ready" and not self.found[key].startswith("Ready")):
                self.found[key] = told

    def wait(self, *reasons: str, seconds: float = 180) -> None:
        """Until each of them was shown by the server that HOW names."""
        for reason in reasons:
            server, _ = HOW[reason]
            self.namespace.wait(f"{server} shows {reason}", partial(self.found.get, (server, reason)), seconds)

    def missing(self) -> list[str]:
        """Reasons of the closed set that no row has brought about."""
        return sorted(r for r in names.REASONS if r not in HOW or (HOW[r][0], r) not in self.found)


@pytest.fixture(scope="module")
def seen(namespace: Namespace) -> Iterator[Seen]:
    """All that the statuses of the namespace have said since the module began."""
    found = Seen(namespace)
    with Watch(namespace, found.tell, "infsrv"):
        yield found


def ask(namespace: Namespace, server: str, path: str, body: Any) -> str:
    """The body of the answer, or what went wrong."""
    return namespace.run_python(
        "client", ASK, f"http://{server}.{namespace.name}.svc:8000/v1/{path}", json.dumps(body)
    ).strip()


def delete(namespace: Namespace, *servers: str) -> None:
    namespace.kubectl("delete", "infsrv", *servers, "--wait=false")


@pytest.fixture
def models(namespace: Namespace) -> Iterator[None]:
    """Two claims: `empty`, whose volume has no file, and `large`, with a config.json of a model far beyond `tiny`."""
    with volumes_of(namespace) as volumes:
        config = json.loads(CONFIG.read_text())
        config["text_config"]["num_experts"] = 2**17
        volumes.add("empty")
        (volumes.add("large") / "config.json").write_text(json.dumps(config))
        for name in ("empty", "large"):
            volumes.claim(name, name)
        yield


def test_what_a_server_goes_through_in_its_life(namespace: Namespace, seen: Seen) -> None:
    namespace.apply(scripted_server("life", drain={"idleGrace": "5s", "sessionTimeout": "20s"}))
    namespace.ready("life")
    seen.wait("PullingImage", "LoadingModel", "Serving")
    namespace.patch("infsrv", "life", {"spec": {"resources": {"cpu": "150m"}}})
    seen.wait("Resizing")
    session = json.loads(ask(namespace, "life", "sessions", {}))["id"]
    turn = {"model": "chat", "session_id": session, "messages": [{"role": "user", "content": "Hi"}]}
    assert "choices" in ask(namespace, "life", "chat/completions", turn)
    namespace.patch("infsrv", "life", {"spec": {"engine": {"drafts": 1}}})
    seen.wait("Draining", "RollingOut")
    namespace.ready("life")
    namespace.patch("infsrv", "life", {"spec": {"engine": {"extraArgs": ["--no-such-flag"]}}})
    seen.wait("NewRevisionFailing")
    namespace.patch("infsrv", "life", {"spec": {"suspend": True}})
    seen.wait("Suspended")
    delete(namespace, "life")


def test_what_the_cluster_lacks(namespace: Namespace, seen: Seen) -> None:
    namespace.apply(
        scripted_server("greedy", gpu={"resourceName": "example.com/none"}),
        scripted_server("imageless", image={"reference": "localhost/carousel/absent:none", "pullPolicy": "Never"}),
        scripted_server("keyless", auth={"apiKeysSecretRef": {"name": "no-such-secret"}}),
    )
    seen.wait("WaitingForGPU", "ImagePullFailed", "SecretMissing")
    delete(namespace, "greedy", "imageless", "keyless")


@pytest.mark.usefixtures("models")
def test_what_a_server_ends_with_at_its_start(namespace: Namespace, seen: Seen) -> None:
    cpu = {"none": True}
    empty, large = ({"source": {"pvc": {"claimName": name}}, "preset": "tiny"} for name in ("empty", "large"))
    namespace.apply(
        inference_server("flag", gpu=cpu, engine={"extraArgs": ["--no-such-flag"]}),
        inference_server("modelless", gpu=cpu, model=empty),
        inference_server("oversize", gpu=cpu, model=large),
        inference_server("crashing", gpu=cpu, pod={"env": [{"name": "PYTHONHOME", "value": "/nowhere"}]}),
    )
    seen.wait("InvalidSpec", "ModelMissing", "LimitsDoNotFit", "CrashLooping")
    for code, reason in (("64", "InvalidSpec"), ("66", "ModelMissing"), ("78", "LimitsDoNotFit")):
        assert f"exited with {code}" in seen.found[HOW[reason][0], reason]
    delete(namespace, "crashing", "flag", "modelless", "oversize")


def test_what_a_server_ends_with_in_a_request(namespace: Namespace, seen: Seen) -> None:
    ends = {"device": "lost", "memory": "out_of_memory"}
    namespace.apply(*(scripted_server(name) for name in (*ends, "hungry")))
    for name in (*ends, "hungry"):
        namespace.ready(name)
    for name, end in ends.items():
        script = json.dumps({"pieces": ["Hi"], "then": end})
        ask(namespace, name, "chat/completions", {"model": "chat", "messages": [{"role": "user", "content": script}]})
    with pytest.raises(CommandError):  # the command ends with the container
        namespace.run_python("hungry-0", HUNGER)
    seen.wait("GPUUnhealthy", "GPUOutOfMemory", "HostOutOfMemory")
    for name in (*ends, "hungry"):
        namespace.ready(name)
    delete(namespace, *ends, "hungry")


def test_a_download(namespace: Namespace, seen: Seen) -> None:
    start_hub(namespace)
    namespace.apply(from_hub("download", "test/tiny"))
    seen.wait("DownloadingModel")
    delete(namespace, "download")


def test_a_server_that_does_not_answer_keeps_its_sessions(namespace: Namespace, seen: Seen) -> None:
    namespace.apply(scripted_server("silent"))
    boot = namespace.serving_boot("silent")
    process = process_of(namespace.get("pod", "silent-0"), "carousel-server")
    os.kill(process, signal.SIGSTOP)
    try:
        seen.wait("AdminUnreachable")
    finally:
        os.kill(process, signal.SIGCONT)
    assert namespace.serving_boot("silent") == boot
    delete(namespace, "silent")


def test_a_node_that_does_not_answer_is_told_and_its_pod_not_forced(namespace: Namespace, seen: Seen) -> None:
    node = {"nodeSelector": {"kubernetes.io/hostname": "node-2"}}
    namespace.apply(scripted_server("far", pod=node))
    boot = namespace.serving_boot("far")
    kubelet = int(Path(CLUSTER_DIR, "pids", "kubelet-2").read_text().split()[0])
    os.kill(kubelet, signal.SIGSTOP)
    try:
        seen.wait("NodeLost")
        assert "deletionTimestamp" not in namespace.get("pod", "far-0")["metadata"]
    finally:
        os.kill(kubelet, signal.SIGCONT)
    assert namespace.serving_boot("far") == boot
    delete(namespace, "far")


def test_every_reason_of_the_closed_set_was_seen(seen: Seen) -> None:
    """Needs the whole module: a row that was left out is named here."""
    lines = []
    for reason, (server, how) in HOW.items():
        lines += [f"{reason}: {how}", f"    {seen.found.get((server, reason), 'NOT SEEN')}"]
    keeping.keep("reasons", lines)
    assert seen.missing() == []
    assert set(HOW) == set(names.REASONS)
