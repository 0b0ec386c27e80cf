"""What is made of a spec, as one table: a part of the children and what it must be (test_workload.py plays it).

A letter and a number in front name the fault report that a row answers (test_fault_reports.py has the list).
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.operator.rendered import Object, children, mounts, volume
from tests.operator.specs import HUB, at

PULLED = {
    "image": {"pullSecrets": ["registry"]},
    "pod": {"tolerations": [{"operator": "Exists"}], "runtimeClassName": "nvidia"},
}
SHARED_CACHE = at("cache.claim", {"claimName": "c", "readOnly": True})


def pod(made: dict[str, Object]) -> Object:
    """The pod template's spec."""
    found: Object = made["StatefulSet/chat"]["spec"]["template"]["spec"]
    return found


def main(made: dict[str, Object]) -> Object:
    """The server's container."""
    found: Object = pod(made)["containers"][0]
    return found


def fetch(made: dict[str, Object]) -> Object:
    """The container that downloads the model."""
    found: Object = pod(made)["initContainers"][0]
    return found


def memory_mib(made: dict[str, Object]) -> int:
    """Memory limit of the server's container."""
    return int(main(made)["resources"]["limits"]["memory"].removesuffix("Mi"))


@dataclass(frozen=True)
class Row:
    """Changes to the smallest spec, and what a part of its children then is."""

    sentence: str
    spec: tuple[Object, ...]
    part: Callable[[dict[str, Object]], object]
    expected: object


ROWS = [
    Row(
        "B15 the hook waits for the endpoint to go before SIGTERM comes",
        (at("drain.requestTimeout", "2m"),),
        lambda made: main(made)["lifecycle"]["preStop"]["exec"]["command"],
        ["carousel-server", "drain", "--wait", "--timeout", "125s"],
    ),
    Row(
        "B17 the server is the first process of its container: no shell keeps SIGTERM from it",
        (),
        lambda made: main(made)["command"],
        ["carousel-server", "serve"],
    ),
    Row("B17 nor from the download", (HUB,), lambda made: fetch(made)["command"][0], "carousel-server"),
    Row(
        "B25 a node drain is never blocked by a single pod",
        (),
        lambda made: made["PodDisruptionBudget/chat"]["spec"]["maxUnavailable"],
        1,
    ),
    Row(
        "C29 a start has the budget of the spec: 3,600 looks of 2 s are two hours",
        (at("startup.timeout", "2h"),),
        lambda made: main(made)["startupProbe"]["failureThreshold"] * main(made)["startupProbe"]["periodSeconds"],
        7200,
    ),
    Row(
        "C29 no probe waits a fixed time, so a small model is seen at once",
        (),
        lambda made: [key for key, probe in main(made).items() if "Probe" in key and "initialDelaySeconds" in probe],
        [],
    ),
    Row(
        "C31 a drain or a full queue is not asked for by liveness",
        (),
        lambda made: main(made)["livenessProbe"]["httpGet"]["path"],
        "/livez",
    ),
    Row(
        "C34 memory is requested as it is limited, so that no node is overcommitted",
        (at("resources.hostMemory", "4Gi"),),
        lambda made: (main(made)["resources"]["requests"]["memory"], main(made)["resources"]["limits"]["memory"]),
        ("4Gi", "4Gi"),
    ),
    Row(
        "C35 /dev/shm is a volume in memory of the size that the spec says",
        (at("resources.sharedMemory", "1Gi"),),
        lambda made: volume(pod(made), mounts(main(made))["/dev/shm"]["name"])["emptyDir"],
        {"medium": "Memory", "sizeLimit": "1Gi"},
    ),
    Row(
        "C35 it is counted in the memory: 960 MiB more of it are 960 MiB more",
        (at("resources.sharedMemory", "1Gi"),),
        lambda made: memory_mib(made) - memory_mib(children()),
        960,
    ),
    Row(
        "D38 nothing that is made has a finalizer, so an operator that is uninstalled strands nothing",
        (HUB, at("networkPolicy.enabled", True)),
        lambda made: [name for name, child in made.items() if "finalizers" in child["metadata"]],
        [],
    ),
    Row(
        "E55 with a claim for each pod no two nodes mount the same one",
        (HUB, at("cache.perReplica.size", "1Gi"), {"replicas": 3}),
        lambda made: [c["metadata"]["name"] for c in made["StatefulSet/chat"]["spec"]["volumeClaimTemplates"]],
        ["cache"],
    ),
    Row(
        "E55 a claim that pods share is mounted read-only by all of them",
        (HUB, SHARED_CACHE, {"replicas": 3}),
        lambda made: volume(pod(made), "cache")["persistentVolumeClaim"],
        {"claimName": "c", "readOnly": True},
    ),
    Row(
        "E56 weights are mounted read-only",
        (HUB, at("cache.ephemeral", {})),
        lambda made: mounts(main(made))["/models"]["readOnly"],
        True,
    ),
    Row(
        "E56 and what a library writes goes elsewhere: lock files into /tmp",
        (HUB, at("cache.ephemeral", {})),
        lambda made: {e["value"] for e in main(made)["env"] if e["name"] in ("HOME", "XDG_CACHE_HOME")},
        {"/tmp", "/tmp/cache"},
    ),
    Row(
        "E56 compiled kernels into the part of the cache that can be written",
        (HUB, at("cache.ephemeral", {})),
        lambda made: "readOnly" in mounts(main(made))["/cache"],
        False,
    ),
    Row(
        "E59 a download runs in the server's own pod: its pull secrets, tolerations and runtime are the same",
        (HUB, PULLED),
        lambda made: [pod(made)[key] for key in ("imagePullSecrets", "tolerations", "runtimeClassName")],
        [[{"name": "registry"}], [{"operator": "Exists"}], "nvidia"],
    ),
    Row(
        "E59 no other kind of object makes pods",
        (HUB, PULLED),
        lambda made: {child["kind"] for child in made.values()},
        {"ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget"},
    ),
    Row(
        "E59 the download does not take the GPU",
        (HUB,),
        lambda made: [key for key in fetch(made)["resources"]["limits"] if "/" in key],
        [],
    ),
]
