"""One scripted server for all HTTP tests of a module that do not change it."""

from collections.abc import Iterator

import pytest

from tests.server.http_kit import Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as found:
        yield found
        found.idle()
