"""The OpenAPI document is true: schemathesis asks the live server everything that it says."""

from typing import Any

import pytest
import schemathesis
from carousel_server.openapi import OPERATIONS, document
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.server.http_kit import Running, running

schema = schemathesis.openapi.from_dict(document(keys_required=False))


@pytest.fixture(scope="module")
def small() -> Any:
    with running(settings={"limits.maxOutputTokens": 8}) as found:
        yield found
        found.idle()


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_server_answers_as_its_document_says(case: Any, small: Running) -> None:
    # A JSON schema cannot say what a whole conversation must hold, so a body that fits it may still be 400.
    case.call_and_validate(base_url=small.url, excluded_checks=[positive_data_acceptance])


def test_the_document_has_every_path_and_is_served(server: Running) -> None:
    found = server.http.get("/openapi.json").json()
    assert found == document(keys_required=False)
    for path, method, _ in OPERATIONS:
        assert method.lower() in found["paths"][path]
    assert "securitySchemes" in document(keys_required=True)["components"]
