"""The OpenAPI document is true: schemathesis asks the live server everything that it says."""

from pathlib import Path
from typing import Any

import carousel_server
import pytest
import schemathesis
from carousel_server.openapi import OPERATIONS, document
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.server.http_kit import Running, running

schema = schemathesis.openapi.from_dict(document(keys_required=False))

# Why a body that fits its schema may still be 400: rules across members or over a whole conversation, and numbers of
# this server. Words of the messages; a 400 with any other message is a fault of the document.
BEYOND_A_SCHEMA = (
    "no user message", "only the first message may be", "which is no open call", "is not JSON", "not an object",
    "needs stream: true", "needs logprobs: true", "is declared twice", "json_schema is missing", "needs the type",
    "tool_choice needs tools", "which is not declared", "structured text", "while tools may be called",
    "is no token id", "this server's limit", "the most here", "prompt tokens leave", "tokens and the context",
    "enforces no grammar",
)  # fmt: skip


@pytest.fixture(scope="module")
def small() -> Any:
    with running(settings={"limits.maxOutputTokens": 8}) as found:
        yield found
        found.idle()


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_server_answers_as_its_document_says(case: Any, small: Running) -> None:
    reply = case.call(base_url=small.url)
    message = reply.json()["error"]["message"] if reply.status_code == 400 else ""
    beyond = any(words in message for words in BEYOND_A_SCHEMA)
    case.validate_response(reply, excluded_checks=[positive_data_acceptance] if beyond else [])


def test_every_reason_beyond_a_schema_is_one_that_the_server_gives() -> None:
    source = "".join(path.read_text() for path in Path(carousel_server.__file__).parent.glob("*.py"))
    assert [words for words in BEYOND_A_SCHEMA if words not in source] == []


def test_the_document_has_every_path_and_is_served(server: Running) -> None:
    found = server.http.get("/openapi.json").json()
    assert found == document(keys_required=False)
    for path, method, _ in OPERATIONS:
        assert method.lower() in found["paths"][path]
    assert "securitySchemes" in document(keys_required=True)["components"]
