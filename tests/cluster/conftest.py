"""The cluster of the test run, the operator in it, and a namespace for each module."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import keeping
from tests.cluster.kube import CLUSTER_DIR, Cluster, Namespace, client_pod, connect, image_of, install


def pytest_configure(config: pytest.Config) -> None:
    """What a run of the full matrix finds is kept."""
    keeping.KEEPER.keeps = "not full" not in str(config.getoption("markexpr"))
    rows = str(config.getoption("markexpr")), str(config.getoption("keyword")), config.args
    keeping.KEEPER.whole = rows == ("cluster", "", ["tests/cluster"])
    config.pluginmanager.register(keeping.KEEPER)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Last comes what takes the cluster down and brings up another."""
    items.sort(key=lambda item: item.path.name == "test_cluster_lifecycle.py")


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The local cluster that `make cluster-up` started."""
    found = connect("local")
    found.kubectl("get", "--raw", "/readyz")
    return found


@pytest.fixture(scope="session")
def operator(cluster: Cluster) -> Cluster:
    """The cluster with both charts installed."""
    install(cluster)
    return cluster


def sweep(cluster: Cluster) -> None:
    """Take away what a test that failed, or was broken off, has left: modules run one after another."""
    for record in (CLUSTER_DIR / "pids").glob("kubelet-*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(record.read_text().split()[0]), signal.SIGCONT)
    names = cluster.kubectl("get", "namespaces", "-o", "name").split()
    for left in (name.removeprefix("namespace/") for name in names if name.startswith("namespace/t-")):
        Namespace(cluster, left).end()
    for node in cluster.kubectl("get", "nodes", "-o", "name").split():
        cluster.kubectl("uncordon", node)


@pytest.fixture(scope="module")
def namespace(operator: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace with a client pod, on its way out after the module."""
    name = "t-" + Path(request.module.__file__).stem.removeprefix("test_").replace("_", "-")
    found = Namespace(operator, name)
    sweep(operator)
    found.delete()  # of an earlier run, where it may still be on its way
    found.create()
    found.apply(client_pod(image_of("server")))
    found.kubectl("wait", "pod/client", "--for=condition=Ready", "--timeout=60s", timeout=70)
    yield found
    found.end()
