"""The status: every reason reachable, messages with numbers, times that move only when something does."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from carousel_operator import intent, names, status, transitions
from carousel_operator.diagnosis import SEVERITY
from carousel_operator.headline import Sight, Verdict, conditions
from carousel_operator.intent import Intent
from carousel_operator.ledger import Loss
from carousel_operator.plan import plan
from carousel_operator.resource import InferenceServer
from carousel_operator.view import Exit, Observed, PodView
from carousel_operator.want import Want

from tests.operator.scene import (
    NEW,
    NOW,
    OLD,
    GiB,
    cordoned,
    crashing,
    loading,
    lost,
    mark,
    pending,
    pod,
    seen,
    sight,
    sizes,
    told,
    waiting,
    want,
)

OBJECT = {
    "metadata": {"name": "chat", "namespace": "default", "uid": "u", "generation": 3},
    "spec": {"model": {"source": {"embedded": {}}}, "image": {"reference": "r/i:1"}},
}


def server(**old: Any) -> InferenceServer:
    """The object whose status is written."""
    return InferenceServer.parse({**OBJECT, "status": old})


def rendered(wanted: Want, observed: Observed, now: float = NOW, old: dict[str, Any] | None = None) -> dict[str, Any]:
    """The status of one situation."""
    made = Intent(wanted, None, None)
    obj = InferenceServer.parse(
        {**OBJECT, "spec": {**OBJECT["spec"], "resources": {"hostMemory": "8Gi"}}, "status": old or {}}
    )
    return status.render(obj, made, observed, plan(wanted, observed, now), now).status


def condition(found: dict[str, Any], kind: str) -> tuple[str, str, str]:
    """status, reason and message of a condition."""
    one = transitions.condition(found, kind)
    return one["status"], one["reason"], one["message"]


@dataclass(frozen=True)
class Row:
    """A situation, the headline that a person reads first, and words that its message must have."""

    sentence: str
    want: Want
    sight: Observed
    reason: str
    words: tuple[str, ...] = ()
    ready: str = "False"
    degraded: str = "False"


ROWS = [
    Row("serving", want(replicas=2), sight(pod(0), pod(1)), "Serving", ("2 of 2",), "True"),
    Row("A1 no free GPU", want(), sight(pending()), "WaitingForGPU", ("chat-0", "Insufficient nvidia.com/gpu")),
    Row(
        "A1 no free GPU in a rollout",
        want(replicas=2),
        sight(pending(0), pod(1, OLD)),
        "WaitingForGPU",
        ("Insufficient",),
    ),
    Row("pulling", want(), sight(waiting(0, "ContainerCreating")), "PullingImage", ("ContainerCreating", "node-a")),
    Row(
        "downloading",
        want(),
        sight(pod(0, ready=False, running=False, started=False, initialising=True, says=None)),
        "DownloadingModel",
    ),
    Row("C30 loading", want(), sight(loading()), "LoadingModel", ("43%",)),
    Row(
        "draining",
        want(),
        sight(pod(0, OLD, mark=mark(), says={"sessions": 3, "running": 1, "drain": told()})),
        "Draining",
        ("draining chat-0: 3 sessions, 1 request, until",),
    ),
    Row(
        "draining on a cordoned node",
        want(),
        sight(
            pod(0, mark=mark("cordon", timeout=None), says={"sessions": 3, "drain": told("cordon")}),
            nodes=cordoned("node-a"),
        ),
        "Draining",
        ("until it is quiet",),
    ),
    Row("rolling out", want(replicas=2), sight(loading(0), pod(1, OLD)), "RollingOut", ("1 of 2", NEW, "43%")),
    Row("suspended", want(suspend=True), sight(), "Suspended", ("spec.suspend",)),
    Row("scaled to none", want(replicas=0), sight(), "Suspended", ("spec.replicas is 0",)),
    Row(
        "suspending", want(suspend=True), sight(pod(mark=mark("suspend"), says={"drain": told("suspend")})), "Draining"
    ),
    Row("crash loop", want(), sight(crashing(code=139)), "CrashLooping", ("139", "4 restarts"), degraded="True"),
    Row(
        "C34 killed for memory",
        want(),
        sight(crashing(last_exit=Exit(137, "OOMKilled"))),
        "HostOutOfMemory",
        ("8 GiB", "4 restarts"),
        degraded="True",
    ),
    Row("GPU memory", want(), sight(crashing(code=71)), "GPUOutOfMemory", ("71",), degraded="True"),
    Row("C32 CUDA failed", want(), sight(crashing(code=70)), "GPUUnhealthy", ("70",), degraded="True"),
    Row(
        "C32 a bad device under a pod that is not ready",
        want(),
        sight(pod(ready=False, unhealthy_devices=("GPU-7",))),
        "GPUUnhealthy",
        ("GPU-7",),
        degraded="True",
    ),
    Row(
        "a lost node",
        want(),
        sight(pod(ready=False, says=None), nodes=lost(since=60)),
        "NodeLost",
        ("node-a", "not forced"),
        degraded="True",
    ),
    Row(
        "a missing Secret",
        want(hold="missing: Secret hub key token"),
        sight(waiting(0, "CreateContainerConfigError", 'secret "hub" not found'), missing=("Secret hub key token",)),
        "SecretMissing",
        ("Secret hub key token",),
        degraded="True",
    ),
    Row(
        "a missing Secret that only the kubelet sees",
        want(),
        sight(waiting(0, "CreateContainerConfigError", 'secret "hub" not found')),
        "SecretMissing",
        ("hub",),
        degraded="True",
    ),
    Row(
        "a missing claim",
        want(hold="missing: PersistentVolumeClaim models"),
        sight(pending(), missing=("PersistentVolumeClaim models",)),
        "ModelMissing",
        ("models",),
        degraded="True",
    ),
    Row("missing files", want(), sight(crashing(code=66)), "ModelMissing", ("66",), degraded="True"),
    Row(
        "an image that cannot be pulled",
        want(),
        sight(waiting(0, "ImagePullBackOff", "denied")),
        "ImagePullFailed",
        ("denied",),
        degraded="True",
    ),
    Row("refused settings", want(), sight(crashing(code=64)), "InvalidSpec", ("64",), degraded="True"),
    Row("a plan that the server refuses", want(), sight(crashing(code=78)), "LimitsDoNotFit", ("78",), degraded="True"),
    Row(
        "a plan that does not fit",
        want(blocked="host memory: 9 GiB of 8 GiB"),
        sight(pod()),
        "LimitsDoNotFit",
        ("9 GiB of 8 GiB",),
        degraded="True",
    ),
    Row(
        "an admin port that does not answer",
        want(),
        sight(pod(ready=False, says=None)),
        "AdminUnreachable",
        ("no answer",),
        degraded="True",
    ),
    Row(
        "a failing revision",
        want(replicas=2),
        sight(crashing(0, code=66), pod(1, OLD)),
        "NewRevisionFailing",
        ("chat-0", "66", "1 older pods are kept"),
        degraded="True",
    ),
    Row(
        "a failing revision of the only pod",
        want(),
        sight(crashing(0), current_revision=OLD),
        "NewRevisionFailing",
        ("chat-0",),
        degraded="True",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[r.sentence.replace(" ", "_") for r in ROWS])
def test_the_headline_of_this_situation(row: Row) -> None:
    found = rendered(row.want, row.sight)
    ready, reason, message = condition(found, names.READY)
    assert (ready, reason) == (row.ready, row.reason)
    for word in row.words:
        assert word in message
    assert condition(found, names.DEGRADED)[0] == row.degraded


def test_resizing_is_progress_of_a_ready_server() -> None:
    found = rendered(
        want(memory_bytes=10 * GiB), sight(pod(resize=sizes(10, 8, pending="Deferred", message="node full")))
    )
    assert condition(found, names.READY)[:2] == ("True", "Serving")
    ready, reason, message = condition(found, names.PROGRESSING)
    assert (ready, reason) == ("True", "Resizing")
    assert "chat-0: deferred (node full)" in message


def test_limits_that_are_not_applied_everywhere_are_counted() -> None:
    found = rendered(want(replicas=2, limits_generation=7), sight(pod(0, says={"generation": 7}), pod(1)))
    assert found["limits"] == {"generation": 7, "appliedReplicas": 1}
    assert "limits generation 7: 1 of 2 pods run with it" in condition(found, names.PROGRESSING)[2]


def test_every_reason_of_the_closed_list_is_reached_and_no_other() -> None:
    reached = {row.reason for row in ROWS} | {"Resizing"}
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


def test_another_plan_of_the_server_is_shown_with_both_totals() -> None:
    spec = InferenceServer.parse(OBJECT)
    from carousel_operator import memory

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
    from carousel_operator import memory

    spec = InferenceServer.parse(OBJECT)
    made = memory.plan_for(spec.spec)
    assert made is not None
    rows = intent.rows(made)
    assert sum(r["bytes"] for r in rows if r["where"] == "host") == made.host_bytes
    assert len({(r["where"], r["name"]) for r in rows}) == len(rows)


# Events


def test_nothing_is_posted_while_a_status_stays_the_same() -> None:
    same = rendered(want(), sight(pod()))
    assert transitions.notices(same, same) == []


def test_becoming_and_ceasing_to_be_ready_is_posted_with_the_reason() -> None:
    good, bad = rendered(want(), sight(pod())), rendered(want(), sight(crashing()))
    lost_it = transitions.notices(good, bad)
    assert [(n.reason, n.warning) for n in lost_it] == [("NotReady", True)]
    assert "CrashLooping" in lost_it[0].message
    assert [n.reason for n in transitions.notices(bad, good)] == ["Ready"]


def test_a_rollout_is_posted_at_its_start_its_stop_and_its_end() -> None:
    before = rendered(want(revision=OLD), sight(pod(0, OLD), current_revision=OLD))
    during = rendered(want(), sight(pod(0, OLD), current_revision=OLD))
    stopped = rendered(want(), sight(crashing(0), current_revision=OLD))
    after = rendered(want(), sight(pod(0), current_revision=OLD))
    assert "RolloutStarted" in [n.reason for n in transitions.notices(before, during)]
    assert [n.reason for n in transitions.notices(during, stopped)] == ["RolloutStopped"]
    assert "RolloutFinished" in [n.reason for n in transitions.notices(during, after)]


def test_applied_limits_are_posted_when_the_last_pod_has_them() -> None:
    def one(first: int, second: int, generation: int) -> dict[str, Any]:
        pods = (pod(0, says={"generation": first}), pod(1, says={"generation": second}))
        return rendered(want(replicas=2, limits_generation=generation), sight(*pods))

    assert transitions.notices(one(1, 1, 1), one(2, 1, 2)) == []
    assert [n.message for n in transitions.notices(one(2, 1, 2), one(2, 2, 2))] == ["generation 2: 2 of 2 pods"]
    assert [n.reason for n in transitions.notices(one(1, 1, 1), one(2, 2, 2))] == ["LimitsApplied"]


def test_every_event_that_is_posted_is_in_the_list() -> None:
    statuses = [rendered(row.want, row.sight) for row in ROWS]
    posted = {n.reason for old in statuses for new in statuses for n in transitions.notices(old, new)}
    assert posted <= set(names.EVENTS)


def test_conditions_are_made_of_a_sight_alone() -> None:
    observed = sight(pod())
    found = conditions(Sight(want(), observed, plan(want(), observed, NOW)))
    assert [v.type for v in found] == list(names.CONDITIONS)
