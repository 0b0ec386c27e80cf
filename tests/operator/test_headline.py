"""Conditions: every reason reachable, the worst first, messages with numbers."""

import pytest
from carousel_operator import names
from carousel_operator.diagnosis import SEVERITY
from carousel_operator.headline import Sight, conditions
from carousel_operator.plan import plan

from tests.operator.headline_rows import ROWS, Row
from tests.operator.scene import NEW, NOW, OLD, crashing, pod, sight, want
from tests.operator.statuses import condition, rendered


@pytest.mark.parametrize("row", ROWS, ids=[r.sentence.replace(" ", "_") for r in ROWS])
def test_the_headline_of_this_situation(row: Row) -> None:
    found = rendered(row.want, row.sight)
    _, reason, message = condition(found, row.condition)
    assert (condition(found, names.READY)[0], reason) == (row.ready, row.reason)
    for word in row.words:
        assert word in message
    assert condition(found, names.DEGRADED)[0] == row.degraded


def test_limits_that_are_not_applied_everywhere_are_counted() -> None:
    found = rendered(want(replicas=2, limits_generation=7), sight(pod(0, says={"generation": 7}), pod(1)))
    assert found["limits"] == {"generation": 7, "appliedReplicas": 1}
    assert "limits generation 7: 1 of 2 pods run with it" in condition(found, names.PROGRESSING)[2]


def test_every_reason_of_the_closed_list_is_reached_and_no_other() -> None:
    reached = {condition(rendered(row.want, row.sight), row.condition)[1] for row in ROWS}
    assert reached == set(names.REASONS)
    assert set(SEVERITY) < set(names.REASONS)


@pytest.mark.parametrize("row", ROWS, ids=[r.sentence.replace(" ", "_") for r in ROWS])
def test_every_condition_is_there_with_a_reason_of_the_list_and_a_message(row: Row) -> None:
    found = rendered(row.want, row.sight)
    assert [c["type"] for c in found["conditions"]] == list(names.CONDITIONS)
    for one in found["conditions"]:
        assert one["reason"] in names.REASONS
        assert one["message"]
        assert one["observedGeneration"] == 3


@pytest.mark.parametrize("row", ROWS, ids=[r.sentence.replace(" ", "_") for r in ROWS])
def test_a_status_that_is_rendered_again_is_the_same(row: Row) -> None:
    first = rendered(row.want, row.sight)
    assert rendered(row.want, row.sight, NOW, first) == first


def test_a_failing_revision_stops_progress_by_name() -> None:
    found = rendered(want(replicas=2), sight(crashing(0), pod(1, OLD)))
    assert condition(found, names.PROGRESSING)[:2] == ("False", "NewRevisionFailing")
    assert condition(found, names.AVAILABLE)[:2] == ("True", "Serving")


def test_a_missing_secret_under_serving_pods_is_told_and_changes_nothing_else() -> None:
    observed = sight(pod(), missing=("Secret hub",))
    found = rendered(want(hold="missing: Secret hub"), observed)
    assert condition(found, names.READY)[:2] == ("True", "Serving")
    assert condition(found, names.DEGRADED)[:2] == ("True", "SecretMissing")


def test_one_missed_answer_is_not_news_but_ten_seconds_of_silence_are() -> None:
    quiet = sight(pod(says=None, silent_since=NOW - 9))
    assert condition(rendered(want(), quiet), names.DEGRADED)[0] == "False"
    silent = sight(pod(says=None, silent_since=NOW - 10))
    assert condition(rendered(want(), silent), names.DEGRADED)[:2] == ("True", "AdminUnreachable")


def test_d49_ready_needs_all_pods_of_the_desired_revision() -> None:
    mixed = rendered(want(replicas=2), sight(pod(0), pod(1, OLD)))
    assert condition(mixed, names.READY)[0] == "False"
    assert (mixed["updatedReplicas"], mixed["readyReplicas"], mixed["replicas"]) == (1, 2, 2)
    assert mixed["revision"] == {"current": OLD, "desired": NEW}
    whole = rendered(want(replicas=2), sight(pod(0), pod(1), current_revision=OLD))
    assert whole["revision"] == {"current": NEW, "desired": NEW}


def test_conditions_are_made_of_a_sight_alone() -> None:
    observed = sight(pod())
    found = conditions(Sight(want(), observed, plan(want(), observed, NOW)))
    assert [v.type for v in found] == list(names.CONDITIONS)
