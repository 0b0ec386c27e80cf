"""The cluster comes up from nothing and from half a cluster, and leaves the machine as it was.

Runs after all other cluster tests, because it takes their cluster down; afterwards there is a fresh one.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kube import CLUSTER_DIR, ROOT, run

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(900)]

KIT = ROOT / "tests/cluster/kit"


def up() -> str:
    return run([KIT / "up.sh"], timeout=300)


def down() -> str:
    return run([KIT / "down.sh"], timeout=300)


def traces() -> list[str]:
    """Every mount, link, route, namespace, firewall rule, cgroup, kernel setting and cluster process of the machine."""
    return run([KIT / "traces.sh", "--all"], timeout=60).splitlines()


def kill(daemon: str) -> None:
    os.kill(int(Path(CLUSTER_DIR, "pids", daemon).read_text().split()[0]), signal.SIGKILL)


@pytest.fixture
def bare_machine() -> Iterator[list[str]]:
    """The machine without a cluster: its traces."""
    down()
    yield traces()
    up()
    run([ROOT / "tests/cluster/images.sh", "load"], timeout=600)


def test_a_cluster_comes_up_in_two_minutes_is_repaired_and_leaves_no_trace(bare_machine: list[str]) -> None:
    begun = time.monotonic()
    config = up().splitlines()[-1]
    assert time.monotonic() - begun < 120
    assert Path(config).exists()
    assert "already up and healthy" in up()

    (CLUSTER_DIR / "complete").unlink()  # as if `up` had been killed
    kill("kubelet-2")
    assert "cleaning up first" in up()
    run([KIT / "up.sh", "--status"], timeout=60)

    assert traces() != bare_machine
    assert "nothing left behind" in down()
    assert traces() == bare_machine
    assert "no cluster" in down()
