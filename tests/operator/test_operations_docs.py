"""The pages on operation name everything that the operator can say, and nothing else."""

import re
from pathlib import Path
from typing import get_args

import pytest
from carousel_operator import names
from carousel_server.admin_state import LossCause

DOCS = Path(__file__).parents[2] / "docs"


def test_every_reason_has_a_row_that_says_what_to_do() -> None:
    text = (DOCS / "operations.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if re.match(r"\| `[A-Z]\w+` \|", line)]
    assert {row[1].strip(" `") for row in rows} == set(names.REASONS)
    assert all(row[2].strip() and row[3].strip() for row in rows)


@pytest.mark.parametrize("cause", get_args(LossCause))
def test_every_cause_of_a_lost_session_is_explained(cause: str) -> None:
    assert f"`{cause}`" in (DOCS / "operations.md").read_text()


def test_every_reason_to_drain_is_explained() -> None:
    text = (DOCS / "drain.md").read_text()
    for reason in ("rollout", "restart", "scale-down", "suspend", "cordon"):
        assert re.search(rf"^\| `{reason}` \|", text, re.MULTILINE)


def test_events_metrics_and_annotations_that_the_pages_name_exist() -> None:
    text = (DOCS / "operations.md").read_text() + (DOCS / "drain.md").read_text()
    assert set(re.findall(r"`(carousel\.dev/[a-z-]+)", text)) <= set(names.ANNOTATIONS) | {"carousel.dev/preview"}
    assert set(re.findall(r"carousel_operator_\w+", text)) <= set(names.METRICS)
    told = set(re.findall(r"`(Drain[A-Z]\w+|LimitsDeferred|SessionsLost)`", text))
    assert told <= set(names.EVENTS)
