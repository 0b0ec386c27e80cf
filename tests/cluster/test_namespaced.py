"""An operator with Roles only: it serves the namespaces it was given, and touches no other."""

from collections.abc import Iterator

import pytest

from tests.cluster.kube import Cluster, CommandError, Namespace, install
from tests.cluster.scenario import Traffic, scripted_server

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(600)]
ACCOUNT = "system:serviceaccount:carousel-system:carousel-operator"


@pytest.fixture(scope="module")
def namespaced(namespace: Namespace) -> Iterator[Namespace]:
    """The module's namespace, the only one of the operator; after it, the operator has all again."""
    install(namespace.cluster, f"namespaces={{{namespace.name}}}")
    yield namespace
    install(namespace.cluster)


def allowed(cluster: Cluster, *words: str) -> bool:
    """What the API server says the operator's account may do."""
    try:
        return cluster.kubectl("auth", "can-i", *words, f"--as={ACCOUNT}").strip() == "yes"
    except CommandError:  # exit code 1 is no
        return False


def test_a_restart_with_roles_only_tells_its_clients_as_with_a_cluster_role(namespaced: Namespace) -> None:
    cluster = namespaced.cluster
    assert allowed(cluster, "delete", "pods", "-n", namespaced.name)
    assert not allowed(cluster, "get", "nodes")
    assert not allowed(cluster, "list", "inferenceservers.carousel.dev", "-A")
    assert "carousel-operator" not in cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    namespaced.apply(scripted_server("own"))
    boot = namespaced.serving_boot("own")
    with Traffic(namespaced, "own", causes=["restart"], refused=True, stream_pieces=12) as traffic:
        traffic.settled()
        namespaced.patch("infsrv", "own", {"spec": {"restart": {"id": "one"}}})
        namespaced.other_boot("own", boot)
        namespaced.wait("a session learns of it", lambda: any(e["what"] == "lost" for e in traffic.events), 60)
    traffic.check()
    assert set(traffic.result["causes"]) == {"restart"}, traffic.result


def test_an_object_of_another_namespace_is_left_alone(namespaced: Namespace) -> None:
    other = Namespace(namespaced.cluster, "t-foreign")
    other.delete()
    other.create()
    try:
        other.apply(scripted_server("foreign"))
        namespaced.apply(scripted_server("later"))
        namespaced.ready("later")
        assert "status" not in other.get("infsrv", "foreign")
        assert "foreign" not in other.kubectl("get", "statefulsets,pods,configmaps", "-o", "name")
    finally:
        other.end()
