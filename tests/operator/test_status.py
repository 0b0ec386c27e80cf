"""The numbers of a status, times that move only when something does, and when a write is worth it."""

from dataclasses import replace
from typing import Any

from carousel_operator import intent, memory, names, status
from carousel_operator.headline import Verdict
from carousel_operator.intent import Intent
from carousel_operator.ledger import Loss
from carousel_operator.plan import plan
from carousel_operator.resource import InferenceServer
from carousel_operator.status_fields import ChangeStatus
from carousel_operator.view import Exit, PodView

from tests.operator.scene import NOW, OLD, GiB, mark, pod, seen, sight, told, want
from tests.operator.statuses import OBJECT, condition, rendered


def test_a_pod_is_told_with_its_numbers() -> None:
    busy = pod(0, OLD, mark=mark(since=10), says={"sessions": 3, "running": 1, "queued": 2, "drain": told()})
    found = rendered(want(), sight(busy))["pods"][0]
    assert found == {
        "name": "chat-0",
        "uid": "uid0",
        "node": "node-a",
        "revision": OLD,
        "state": "Draining",
        "sessions": 3,
        "inFlight": 3,
        "bootId": "boot0",
        "drain": {"reason": "rollout", "startedAt": "1970-01-12T13:46:30Z", "deadline": "1970-01-12T13:56:30Z"},
    }


def test_the_last_exit_of_a_container_stays_visible_after_it_recovered() -> None:
    back = pod(restarts=1, last_exit=Exit(137, "OOMKilled", NOW - 60))
    found = rendered(want(), sight(back))
    assert found["pods"][0]["lastExit"] == {"code": 137, "reason": "OOMKilled", "at": "1970-01-12T13:45:40Z"}
    assert condition(found, names.READY)[1] == "Serving"


def test_a_silent_pod_keeps_its_boot_and_its_sessions_in_the_status() -> None:
    before = seen(pod(), sessions=4)
    found = rendered(want(), sight(pod(says=None), seen=(before,)))
    assert (found["pods"][0]["bootId"], found["pods"][0]["sessions"]) == ("boot0", 4)
    assert found["sessions"]["active"] == 4


def test_at_most_a_hundred_pods_are_listed_and_all_are_counted() -> None:
    many = [pod(n) for n in range(120)]
    found = rendered(want(replicas=120), sight(*many))
    assert (len(found["pods"]), found["replicas"], found["readyReplicas"]) == (100, 120, 120)


def test_lost_sessions_add_up_by_cause() -> None:
    old = {"sessions": {"lost": [{"cause": "crash", "boots": 1, "sessions": 5}]}}
    losses = [Loss("chat-0", 0, "b", "crash", 2), Loss("chat-1", 1, "c", "rollout", 1)]
    found = [(e.cause, e.boots, e.sessions) for e in status.lost(old, losses)]
    assert found == [("crash", 2, 7), ("rollout", 1, 1)]


def test_a_transition_time_moves_only_when_the_status_does() -> None:
    first = status.dump(status.stamp([Verdict("Ready", "False", "LoadingModel", "43%")], {}, 1, NOW)[0])
    old = {"conditions": [first]}
    again = status.dump(status.stamp([Verdict("Ready", "False", "Draining", "x")], old, 1, NOW + 50)[0])
    assert again["lastTransitionTime"] == first["lastTransitionTime"]
    turned = status.dump(status.stamp([Verdict("Ready", "True", "Serving", "x")], old, 1, NOW + 50)[0])
    assert turned["lastTransitionTime"] == "1970-01-12T13:47:30Z"


def test_a_write_that_only_changes_counts_waits_thirty_seconds() -> None:
    old = rendered(want(), sight(pod(says={"sessions": 1})))
    new = rendered(want(), sight(pod(says={"sessions": 2, "running": 1})), NOW + 10, old)
    assert not status.worth_writing(old, new, NOW, NOW + 29.9)
    assert status.worth_writing(old, new, NOW, NOW + 30)
    assert not status.worth_writing(old, old, NOW, NOW + 9999)


def test_a_change_of_state_is_written_at_once() -> None:
    old = rendered(want(), sight(pod()))
    new = rendered(want(), sight(pod(ready=False)), NOW + 1, old)
    assert status.worth_writing(old, new, NOW, NOW + 1)


def test_a_lost_boot_is_written_at_once() -> None:
    old = rendered(want(), sight(pod()))
    new = {**old, "sessions": {**old["sessions"], "lost": [{"cause": "crash", "boots": 1, "sessions": 1}]}}
    assert status.worth_writing(old, new, NOW, NOW + 1)


def test_an_object_that_cannot_be_carried_out_keeps_its_last_numbers() -> None:
    old = rendered(want(), sight(pod(says={"sessions": 3})))
    found = status.refused({**OBJECT, "status": old}, "InvalidSpec", "spec.image: Field required", NOW + 5).status
    assert condition(found, names.READY) == ("False", "InvalidSpec", "spec.image: Field required")
    assert condition(found, names.DEGRADED)[0] == "True"
    assert found["sessions"] == old["sessions"]
    assert [c["type"] for c in found["conditions"]] == list(names.CONDITIONS)


def test_a_change_that_does_not_fit_is_told_as_waiting() -> None:
    change = {"class": "Hot", "fields": ["limits.prefixCache.bytes"], "since": "2026-01-01T00:00:00Z"}
    made = Intent(want(blocked="9 GiB of 8 GiB"), None, ChangeStatus.model_validate(change))
    obj = InferenceServer.parse({**OBJECT, "spec": {**OBJECT["spec"], "resources": {"hostMemory": "8Gi"}}})
    found = status.render(obj, made, sight(pod()), plan(made.want, sight(pod()), NOW), NOW).status
    assert found["change"]["message"] == "when the limits fit: is pushed to running pods; no session is lost"


def test_another_plan_of_the_server_is_shown_with_both_totals() -> None:
    spec = InferenceServer.parse(OBJECT)
    made = Intent(want(), memory.plan_for(spec.spec), None)
    observed = sight(pod(says={"plan_bytes": 3 * GiB}))
    found = status.render(spec, made, observed, plan(made.want, observed, NOW), NOW).status
    state, _, message = condition(found, names.MEMORY_PLAN_SKEW)
    assert state == "True"
    assert "3 GiB" in message
    assert found["memory"]["reportedHostBytes"] == 3 * GiB
    assert made.memory_plan is not None
    same = sight(pod(says={"plan_bytes": made.memory_plan.host_bytes}))
    agreed = replace(same.pods[0], admin=replace_gpu(same.pods[0], made.memory_plan.gpu_bytes))
    again = status.render(spec, made, replace(same, pods=(agreed,)), plan(made.want, same, NOW), NOW).status
    assert condition(again, names.MEMORY_PLAN_SKEW)[0] == "False"


def replace_gpu(view: PodView, gpu: int) -> Any:
    """The pod's admin state with another GPU total."""
    assert view.admin is not None
    return view.admin.model_copy(update={"plan_gpu_bytes": gpu})


def test_the_memory_plan_is_shown_as_a_table() -> None:
    spec = InferenceServer.parse(OBJECT)
    made = memory.plan_for(spec.spec)
    assert made is not None
    rows = intent.rows(made)
    assert sum(r["bytes"] for r in rows if r["where"] == "host") == made.host_bytes
    assert len({(r["where"], r["name"]) for r in rows}) == len(rows)
