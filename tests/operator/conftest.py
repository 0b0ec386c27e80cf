"""The API server that the tests of the operator share."""

import time
from collections.abc import Iterator

import pytest
from carousel_operator import names
from carousel_operator.crd import custom_resource_definition

from tests.operator.apiserver import ApiServer, Refused, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First comes the file that takes as long as all others together: beside it `make test-api` runs those."""
    items.sort(key=lambda item: item.path.name != "test_api_random.py")


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    """An API server with the CRD, for tests marked `api`. Each test uses names of its own."""
    with running() as server:
        server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", custom_resource_definition())
        wait_until_served(server)
        yield server


def wait_until_served(server: ApiServer) -> None:
    """A CRD is served a moment after it was taken; kubectl wait trips over one without any condition."""
    wait_for(server, f"/apis/{names.API_VERSION}/{names.PLURAL}", 30)


def wait_for(server: ApiServer, path: str, seconds: float) -> None:
    """Until a GET of `path` succeeds. Raises Refused with the last answer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            server.call("GET", path)
            return
        except Refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.fixture(scope="session")
def live() -> Iterator[ApiServer]:
    """As `api`, with Kubernetes' own controllers: StatefulSets make pods, owners collect their children."""
    with running(controllers=True) as server:
        server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", custom_resource_definition())
        wait_until_served(server)
        # The first thing that the controllers make: before it is there, a StatefulSet makes no pod.
        wait_for(server, "/api/v1/namespaces/default/serviceaccounts/default", 120)
        yield server
