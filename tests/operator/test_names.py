"""The closed lists of names, and that nothing goes around them."""

import re
from pathlib import Path

import pytest
from carousel_operator import names
from carousel_server.admin_state import EXIT_CODES

PACKAGE = Path(names.__file__).parent
TABLES = {
    "labels": names.LABELS,
    "annotations": names.ANNOTATIONS,
    "conditions": names.CONDITIONS,
    "reasons": names.REASONS,
    "events": names.EVENTS,
    "metrics": names.METRICS,
}


@pytest.mark.parametrize("table", TABLES)
def test_every_name_has_one_line_of_docs(table: str) -> None:
    for name, text in TABLES[table].items():
        assert text.endswith("."), name
        assert len(text.splitlines()) == 1, name


def test_reasons_and_conditions_have_the_form_that_kubernetes_asks_for() -> None:
    for name in [*names.REASONS, *names.EVENTS, *names.CONDITIONS]:
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9]*)", name)


def test_metrics_have_a_prefix_and_counters_end_in_total() -> None:
    assert all(name.startswith("carousel_operator_") for name in names.METRICS)


def test_every_way_a_server_ends_is_a_reason() -> None:
    assert set(EXIT_CODES.values()) - {"Clean"} <= set(names.REASONS)


def test_names_of_our_group_are_written_in_one_file() -> None:
    elsewhere = {
        f"{path.name}: {literal}"
        for path in PACKAGE.glob("*.py")
        if path.name not in ("names.py", "rules.py", "samples.py")
        for literal in re.findall(r'"carousel\.dev/[^"]*"', path.read_text())
    }
    assert elsewhere == set()


def test_labels_of_children_never_change_for_a_name() -> None:
    assert names.selector("a") == {"app.kubernetes.io/name": "carousel-server", "carousel.dev/inferenceserver": "a"}
    assert names.selector("a").items() <= names.labels("a").items()
    assert set(names.labels("a")) < set(names.LABELS)
