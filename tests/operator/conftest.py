"""The API server that the tests of the operator share."""

from collections.abc import Iterator

import pytest
from carousel_operator.crd import custom_resource_definition

from tests.operator.apiserver import ApiServer, running


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    """An API server with the CRD, for tests marked `api`. Each test uses names of its own."""
    with running() as server:
        server.apply(custom_resource_definition())
        server.kubectl("wait", "--for=condition=Established", "crd/inferenceservers.carousel.dev", "--timeout=20s")
        yield server


@pytest.fixture(scope="session")
def live() -> Iterator[ApiServer]:
    """As `api`, with Kubernetes' own controllers: StatefulSets make pods, owners collect their children."""
    with running(controllers=True) as server:
        server.apply(custom_resource_definition())
        server.kubectl("wait", "--for=condition=Established", "crd/inferenceservers.carousel.dev", "--timeout=20s")
        yield server
