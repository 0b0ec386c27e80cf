"""`make demo` is the main promise, so CI runs it as a user would."""

import pytest

from tests.cluster import demo
from tests.cluster.kube import Cluster, install

pytestmark = pytest.mark.cluster


@pytest.mark.timeout(600)
def test_the_demo_ends_with_a_410_that_names_the_restart(
    operator: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONTEXT", raising=False)
    monkeypatch.setattr(demo, "find_cluster", lambda context: "local")
    assert demo.main(["--clean"]) == 0
    code = demo.main([])
    out, err = capfd.readouterr()
    assert code == 0, out + err
    for promised in ("Mara", "get_weather", "kubectl get infsrv", "410", '"cause": "restart"', "Look around:"):
        assert promised in out, f"{promised!r} is not in the transcript:\n{out}"
    assert demo.main(["--clean"]) == 0
    install(operator)  # the demo's end took it away from the other tests
