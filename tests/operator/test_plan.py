"""The planner as tables: what is wanted, what is seen, what is done (plan_rows has the situations).

A letter and a number in front name the fault report that a row answers (test_fault_reports.py has the list).
"""

from typing import Any

import pytest
from carousel_operator.actions import DrainEnded, Notice
from carousel_operator.plan import Plan, plan
from carousel_operator.view import Mark
from carousel_server.admin_state import LostBoot, PeersUpdate

from tests.operator.plan_rows import SITUATIONS
from tests.operator.plan_rows.ledger import RESTARTED
from tests.operator.plan_rows.row import Row
from tests.operator.scene import NOW, OLD, crashing, mark, pod, seen, sight, told, want, words


@pytest.mark.parametrize("row", SITUATIONS, ids=[row.sentence.replace(" ", "_") for row in SITUATIONS])
def test_the_plan_in_this_situation(row: Row) -> None:
    made = plan(row.want, row.sight, NOW)
    assert words(made.actions) == row.do
    if row.replicas is not None:
        assert made.replicas == row.replicas
    if row.rollout is not None:
        assert made.rollout.state == row.rollout
    if row.lost is not None:
        assert " ".join(loss.cause for loss in made.losses) == row.lost
    if row.poll is not None:
        assert made.poll == row.poll


@pytest.mark.parametrize("row", SITUATIONS, ids=[row.sentence.replace(" ", "_") for row in SITUATIONS])
def test_the_plan_only_depends_on_its_arguments(row: Row) -> None:
    assert plan(row.want, row.sight, NOW) == plan(row.want, row.sight, NOW)


def test_there_are_at_least_eighty_situations_and_each_has_its_own_sentence() -> None:
    assert len(SITUATIONS) >= 80
    assert len({row.sentence for row in SITUATIONS}) == len(SITUATIONS)


def _notices(made: Plan) -> list[Any]:
    return [a for a in made.actions if isinstance(a, Notice | DrainEnded)]


def test_a_drain_is_announced_once_with_its_numbers() -> None:
    first = plan(want(), sight(pod(0, OLD, says={"sessions": 3, "running": 1})), 0.0)
    text = "chat-0: rollout, 3 sessions, 1 request, until 00:10:00Z"
    assert _notices(first) == [Notice("DrainStarted", text)]
    marked = pod(0, OLD, mark=Mark("rollout", 0.0, 600.0), says={"sessions": 3, "running": 1, "drain": told()})
    assert _notices(plan(want(), sight(marked), 1.0)) == []


@pytest.mark.parametrize(
    ("pods", "outcome"),
    [
        (pod(0, OLD, mark=mark(), says={"sessions": 2, "drain": told(closed=True)}), "quiet"),
        (pod(0, OLD, mark=mark(since=600), says={"running": 1, "drain": told(closed=True)}), "deadline"),
        (pod(0, OLD, mark=mark(since=600), says=None), "deadline"),
        (crashing(0, OLD), "nothing"),
    ],
)
def test_the_outcome_of_a_drain_is_counted(pods: Any, outcome: str) -> None:
    ended = [a for a in plan(want(), sight(pods), NOW).actions if isinstance(a, DrainEnded)]
    assert ended == [DrainEnded("rollout", outcome)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "held"), [(None, "3 sessions by the last status"), (45296.0, "3 sessions as of 12:34:56Z")]
)
def test_a_boot_that_ended_unannounced_is_told_with_the_age_of_its_count(asked: float | None, held: str) -> None:
    made = plan(want(), sight(RESTARTED, seen=(seen(pod(), sessions=3, asked=asked),)), NOW)
    assert _notices(made) == [Notice("SessionsLost", f"chat-0 boot boot0: {held}, crash", warning=True)]


def test_a_drained_boot_is_counted_at_its_close() -> None:
    closed = pod(0, OLD, mark=mark(), says={"sessions": 2, "drain": told(closed=True)})
    made = plan(want(), sight(closed, seen=(seen(closed, sessions=9),)), NOW)
    assert [(loss.sessions, loss.held) for loss in made.losses] == [(2, "2 sessions")]


def test_a_forced_close_is_a_warning_with_what_it_cuts() -> None:
    late = pod(0, OLD, mark=mark(since=601), says={"sessions": 2, "running": 1, "drain": told(remaining=0)})
    forced = [a for a in _notices(plan(want(), sight(late), NOW)) if a.reason == "DrainForced"]
    text = "chat-0: deadline passed with 2 sessions, 1 request"
    assert forced == [Notice("DrainForced", text, warning=True, pod="chat-0")]


def test_the_ledger_keeps_the_last_64_boots_and_its_generation_moves_with_its_content() -> None:
    many = [LostBoot(ordinal=0, boot_id=f"b{n}", cause="crash", at="2026-01-01T00:00:00Z") for n in range(64)]
    made = plan(want(), sight(RESTARTED, seen=(seen(pod()),), peers=PeersUpdate(generation=7, lost=many)), NOW)
    assert (made.peers.generation, len(made.peers.lost)) == (8, 64)
    assert (made.peers.lost[0].boot_id, made.peers.lost[-1].boot_id) == ("b1", "boot0")
    again = plan(want(), sight(RESTARTED, seen=made.seen, peers=made.peers), NOW + 60)
    assert again.peers == made.peers


def test_one_missed_answer_does_not_change_the_peers_table_twice() -> None:
    table = sight(pod(0), pod(1)).peers
    silent = plan(want(replicas=2), sight(pod(0), pod(1, says=None), peers=table), NOW)
    assert [(p.boot_id, p.accepting) for p in silent.peers.peers] == [("boot0", True), ("boot1", False)]
    assert plan(want(replicas=2), sight(pod(0), pod(1, says=None), peers=silent.peers), NOW).peers == silent.peers
