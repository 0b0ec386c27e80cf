"""The drain of one pod: its steps, its arithmetic, and what no order of events can break."""

import pytest
from carousel_operator.drain import NO_DEADLINE_SECONDS, DrainSettings, step
from carousel_operator.plan import plan
from carousel_operator.view import Mark
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operator.scene import NOW, OLD, crashing, mark, pod, sight, told, want


def test_a_drain_takes_its_steps_in_order() -> None:
    chosen = DrainSettings()
    bare = pod(0, OLD, says={"sessions": 1, "idle": 5.0})
    marked = mark()
    steps = [
        step(bare, "rollout", chosen, NOW).do,
        step(pod(0, OLD, mark=marked, says={"sessions": 1, "idle": 5.0}), "rollout", chosen, NOW).do,
        step(pod(0, OLD, mark=marked, says={"sessions": 1, "idle": 5.0, "drain": told()}), "rollout", chosen, NOW).do,
        step(pod(0, OLD, mark=marked, says={"sessions": 1, "idle": 500.0, "drain": told()}), "rollout", chosen, NOW).do,
        step(pod(0, OLD, mark=marked, says={"drain": told(closed=True)}), "rollout", chosen, NOW).do,
    ]
    assert steps == ["mark", "quiesce", "wait", "close", "remove"]


@pytest.mark.parametrize(
    ("policy", "reason", "deadline"),
    [
        ("WaitForSessions", "rollout", NOW + 600),
        ("WaitForRequests", "scale-down", NOW + 120),
        ("Immediate", "suspend", NOW),
        ("WaitForSessions", "cordon", None),
    ],
)
def test_the_deadline_follows_policy_and_reason(policy: str, reason: str, deadline: float | None) -> None:
    chosen = DrainSettings(policy=policy)  # type: ignore[arg-type]
    assert chosen.deadline(reason, NOW) == deadline  # type: ignore[arg-type]


@pytest.mark.parametrize(("request_timeout", "grace"), [(120.0, 140), (0.0, 20), (3600.0, 3620)])
def test_the_termination_grace_is_the_longest_request_and_twenty_seconds(request_timeout: float, grace: int) -> None:
    assert DrainSettings(request_timeout=request_timeout).grace_seconds == grace


def test_a_cordoned_pod_is_told_a_week_because_it_must_be_told_something() -> None:
    found = step(pod(0, mark=mark("cordon", timeout=None), says={"sessions": 1}), "cordon", DrainSettings(), NOW)
    assert (found.do, found.remaining) == ("quiesce", NO_DEADLINE_SECONDS)


def test_a_changed_reason_keeps_the_clock() -> None:
    marked = pod(0, OLD, mark=mark("cordon", since=50, timeout=None), says={"sessions": 1, "drain": told("cordon")})
    found = step(marked, "rollout", DrainSettings(), NOW)
    assert found.mark == Mark("rollout", NOW - 50, NOW + 550)


def test_a_mark_survives_its_annotation() -> None:
    for found in (mark(), mark("cordon", timeout=None)):
        assert Mark.load(found.dump()) == found


@pytest.mark.parametrize("text", [None, "", "{", "[]", "null", '{"reason": "whim", "startedAt": 1, "deadline": 2}'])
def test_an_unreadable_mark_is_no_mark(text: str | None) -> None:
    assert Mark.load(text) is None


def test_a_crash_looping_pod_has_nothing_to_drain() -> None:
    assert step(crashing(0, OLD), "rollout", DrainSettings(), NOW).do == "remove"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["answer", "silence", "busy", "idle", "session", "operator restart", "spec back", "spec new"]
            ),
            st.floats(min_value=0.5, max_value=120.0),
        ),
        max_size=40,
    )
)
def test_no_order_of_events_cuts_a_request_before_the_deadline_or_resets_the_clock(
    events: list[tuple[str, float]],
) -> None:
    """A pod and an operator as the events move them; the operator sees only what a reconcile sees."""
    now, marked, drain, answers, busy, idle, sessions, revision = NOW, None, None, True, 1, 0.0, 2, "new"
    started = None
    for event, wait in events:
        now += wait
        idle += wait
        match event:
            case "answer" | "silence":
                answers = event == "answer"
            case "busy":
                # A closed server refuses the turn.
                busy = 0 if drain is not None and drain.closed else 1
            case "idle":
                busy, idle = 0, 0.0
            case "session":
                sessions = 0 if sessions else 2
            case "spec back" | "spec new":
                revision = OLD if event == "spec back" else "new"
        says = {"sessions": sessions, "running": busy, "idle": idle if not busy else 0.0, "drain": drain}
        seen = pod(0, OLD, mark=marked, says=says if answers else None)
        made = plan(want(revision=revision), sight(seen, current_revision=OLD), now)
        for action in made.actions:
            match type(action).__name__:
                case "SetMark":
                    if action.mark is not None and marked is not None:  # type: ignore[union-attr]
                        assert action.mark.started_at == marked.started_at  # type: ignore[union-attr]
                    marked = action.mark  # type: ignore[union-attr]
                    started = None if marked is None else marked.started_at
                case "Quiesce":
                    drain = told("rollout", action.remaining)  # type: ignore[union-attr]
                case "Close":
                    late = started is not None and now - started >= 600
                    assert late or not busy
                    assert action.force == late  # type: ignore[union-attr]
                    drain = told("rollout", closed=True)
                case "Undo":
                    drain = None
                case "Delete":
                    assert drain is not None or not answers
                    assert (drain is not None and drain.closed) or (started is not None and now - started >= 600)
                    return
        if drain is not None and not drain.closed and started is not None:
            drain = told("rollout", max(0.0, started + 600 - now))
