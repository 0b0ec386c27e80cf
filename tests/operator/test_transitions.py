"""Events: posted when something has changed, and only then."""

from pathlib import Path
from typing import Any

from carousel_operator import names, transitions
from carousel_operator.actions import Notice
from carousel_operator.plan import plan

from tests.operator.headline_rows import ROWS
from tests.operator.plan_rows import SITUATIONS
from tests.operator.scene import NOW, OLD, crashing, loading, pod, sight, want
from tests.operator.statuses import rendered


def test_nothing_is_posted_while_a_status_stays_the_same() -> None:
    same = rendered(want(), sight(pod()))
    assert transitions.notices(same, same) == []


def test_becoming_and_ceasing_to_be_ready_is_posted_with_the_reason() -> None:
    good, bad = rendered(want(), sight(pod())), rendered(want(), sight(crashing()))
    lost_it = transitions.notices(good, bad)
    assert [(n.reason, n.warning) for n in lost_it] == [("NotReady", True)]
    assert "CrashLooping" in lost_it[0].message
    assert [n.reason for n in transitions.notices(bad, good)] == ["Ready"]


def test_a_fault_of_a_server_that_is_not_ready_yet_is_posted_once() -> None:
    starting, broken = rendered(want(), sight(loading())), rendered(want(), sight(crashing()))
    assert transitions.notices({}, starting) == []
    for before in ({}, starting):
        assert [(n.reason, n.warning) for n in transitions.notices(before, broken)] == [("NotReady", True)]
    worse = rendered(want(), sight(crashing(code=66)))
    assert transitions.notices(broken, worse) == []


def test_a_rollout_is_posted_at_its_start_its_stop_and_its_end() -> None:
    before = rendered(want(revision=OLD), sight(pod(0, OLD), current_revision=OLD))
    during = rendered(want(), sight(pod(0, OLD), current_revision=OLD))
    stopped = rendered(want(), sight(crashing(0), current_revision=OLD))
    after = rendered(want(), sight(pod(0), current_revision=OLD))
    assert "RolloutStarted" in [n.reason for n in transitions.notices(before, during)]
    assert [n.reason for n in transitions.notices(during, stopped)] == ["RolloutStopped"]
    assert "RolloutFinished" in [n.reason for n in transitions.notices(during, after)]
    assert "RolloutStarted" not in [n.reason for n in transitions.notices(during, before)], "it is taken back"


def test_applied_limits_are_posted_when_the_last_pod_has_them() -> None:
    def one(first: int, second: int, generation: int) -> dict[str, Any]:
        pods = (pod(0, says={"generation": first}), pod(1, says={"generation": second}))
        return rendered(want(replicas=2, limits_generation=generation), sight(*pods))

    assert transitions.notices(one(1, 1, 1), one(2, 1, 2)) == []
    assert [n.message for n in transitions.notices(one(2, 1, 2), one(2, 2, 2))] == ["generation 2: 2 of 2 pods"]
    assert [n.reason for n in transitions.notices(one(1, 1, 1), one(2, 2, 2))] == ["LimitsApplied"]


def test_every_event_of_the_closed_list_is_posted_and_no_other() -> None:
    """By a change between two situations, by a plan, or (where neither shows it) on the API server."""
    statuses = [rendered(row.want, row.sight) for row in ROWS]
    posted = {n.reason for old in statuses for new in statuses for n in transitions.notices(old, new)}
    planned = (action for row in SITUATIONS for action in plan(row.want, row.sight, NOW).actions)
    posted |= {action.reason for action in planned if isinstance(action, Notice)}
    assert posted <= set(names.EVENTS)
    api_tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_api_*.py"))
    assert {reason for reason in names.EVENTS if reason not in posted and f'"{reason}"' not in api_tests} == set()
