"""`make demo` is the main promise, so CI runs it as a user would."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster import demo
from tests.cluster.kube import ROOT, SYSTEM, Cluster, install

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def operator_again(operator: Cluster) -> Iterator[None]:
    """The demo's end takes the operator away, from the other modules, too."""
    yield
    install(operator)


@pytest.mark.timeout(600)
def test_the_demo_ends_with_a_410_that_names_the_restart(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONTEXT", raising=False)
    local = ["--cluster", "local"]
    assert demo.main([*local, "--clean"]) == 0
    code = demo.main(local)
    out, err = capfd.readouterr()
    assert code == 0, out + err
    for promised in ("Mara", "get_weather", "kubectl get infsrv", "410", '"cause": "restart"', "Look around:"):
        assert promised in out, f"{promised!r} is not in the transcript:\n{out}"
    assert demo.main([*local, "--clean"]) == 0


@pytest.mark.timeout(300)
def test_an_interrupted_demo_removes_what_it_made(operator: Cluster) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CONTEXT"}
    command = [sys.executable, "-m", "tests.cluster.demo", "--cluster", "local"]
    try:
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as running:
            assert running.stdout
            told = ""
            for line in running.stdout:
                told += line
                if "until it is Ready" in line:
                    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
                    break
            told += running.stdout.read()
            assert running.wait(timeout=150) == 130, told
        assert "interrupted: cleaning up" in told
        assert operator.kubectl("get", "namespace", demo.NAMESPACE, "--ignore-not-found") == ""
        assert operator.helm("list", "-n", SYSTEM, "--short").strip() == ""
    finally:
        demo.main(["--cluster", "local", "--clean"])  # nothing is left of it, unless this test fails
