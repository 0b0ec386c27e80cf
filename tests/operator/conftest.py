"""The API server that the tests of the operator share."""

import time
from collections.abc import Iterator

import pytest
from carousel_operator import names
from carousel_operator.crd import custom_resource_definition

from tests.operator.apiserver import ApiServer, Refused, running


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    """An API server with the CRD, for tests marked `api`. Each test uses names of its own."""
    with running() as server:
        server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", custom_resource_definition())
        wait_until_served(server)
        yield server


def wait_until_served(server: ApiServer) -> None:
    """A CRD is served a moment after it was taken; kubectl wait trips over one without any condition."""
    deadline = time.monotonic() + 30
    while True:
        try:
            server.call("GET", f"/apis/{names.API_VERSION}/{names.PLURAL}")
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
        yield server
