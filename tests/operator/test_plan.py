"""The planner as one table: what is wanted, what is seen, what is done.

A letter and a number in front name the fault report that a row answers (test_fault_reports.py has the list).
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from carousel_operator.actions import DrainEnded, Notice
from carousel_operator.plan import Plan, plan
from carousel_operator.view import Exit, Mark, Observed
from carousel_operator.want import Want
from carousel_server.admin_state import LostBoot, PeersUpdate

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
    words,
)


@dataclass(frozen=True)
class Row:
    """One situation and what the plan makes of it; None leaves a part unchecked."""

    sentence: str
    want: Want
    sight: Observed
    do: str
    replicas: int | None = None
    rollout: str | None = None
    lost: str | None = None
    poll: float | None = None


OLD_PEERS = PeersUpdate(generation=0)

REST = [
    Row("a healthy server at rest gets nothing done", want(), sight(pod()), "", 1, "done", "", 15),
    Row("a server of three at rest gets nothing done", want(replicas=3), sight(pod(0), pod(1), pod(2)), "", 3, "done"),
    Row("a new server gets its replicas at once", want(replicas=3), sight(statefulset_replicas=None), "", 3, "done"),
    Row("a server without pods is not polled", want(replicas=0), sight(statefulset_replicas=0), "", 0, "done", ""),
    Row("D49 a loading first pod is waited for", want(), sight(loading(), current_revision=""), "", 1),
    Row("a pending first pod is waited for", want(), sight(pending(), current_revision=""), "", 1, "done"),
    Row("D39 a pod that goes by itself is left alone", want(), sight(pod(deleting=True)), "", 1),
    Row("B27 a pod that begins to load is kept where it is", want(), sight(loading(protected=False)), "protect chat-0"),
    Row("B27 a pod that serves may be moved", want(), sight(pod(protected=True)), "expose chat-0"),
    Row("A2 a pod of an older operator but the same intent stays", want(), sight(pod(revision=NEW)), "", 1, "done"),
]

ROLLOUT = [
    Row("a changed revision marks the one pod", want(), sight(pod(0, OLD)), "mark chat-0 rollout", 1, "progressing"),
    Row(
        "a changed restart.id is told as a restart",
        want(change_reason="restart"),
        sight(pod(0, OLD)),
        "mark chat-0 restart",
    ),
    Row(
        "A1 with one GPU the old pod goes first: no second pod is asked for",
        want(),
        sight(pod(0, OLD, mark=mark(), says={"drain": told(closed=True)})),
        "peers to chat-0, delete chat-0 grace 140",
        1,
        "progressing",
        "rollout",
    ),
    Row(
        "A1 while the new pod waits for the GPU nothing else is touched",
        want(replicas=2),
        sight(pending(0), pod(1, OLD)),
        "",
        2,
        "progressing",
    ),
    Row(
        "A3 of three old pods one is drained, that with the fewest sessions",
        want(replicas=3),
        sight(pod(0, OLD, says={"sessions": 3}), pod(1, OLD, says={"sessions": 1}), pod(2, OLD, says={"sessions": 2})),
        "mark chat-1 rollout",
    ),
    Row(
        "of pods with equal sessions the oldest is drained",
        want(replicas=2),
        sight(pod(0, OLD, created=NOW - 10), pod(1, OLD, created=NOW - 20)),
        "mark chat-1 rollout",
    ),
    Row(
        "A12 broken pods are replaced before serving ones",
        want(replicas=2),
        sight(pod(0, OLD), crashing(1, OLD)),
        "delete chat-1 grace 140",
    ),
    Row(
        "A12 a rollback leaves pods of the wanted revision alone and takes the broken one",
        want(replicas=3),
        sight(pod(0), pod(1), crashing(2, OLD)),
        "delete chat-2 grace 140",
    ),
    Row(
        "A5 while a pod goes no second one is drained",
        want(replicas=2),
        sight(pod(0, OLD, deleting=True, says=None), pod(1, OLD)),
        "",
        2,
        "progressing",
    ),
    Row(
        "A5 while a pod is missing no second one is drained",
        want(replicas=2),
        sight(pod(1, OLD), statefulset_replicas=2),
        "",
        2,
        "progressing",
    ),
    Row(
        "while the new pod loads no second one is drained",
        want(replicas=2),
        sight(loading(0), pod(1, OLD)),
        "",
        2,
        "progressing",
    ),
    Row(
        "when the new pod serves the next one is drained",
        want(replicas=2),
        sight(pod(0), pod(1, OLD)),
        "mark chat-1 rollout",
    ),
    Row(
        "a rollout that was begun goes on with the same pod",
        want(replicas=2),
        sight(pod(0, OLD), pod(1, OLD, mark=mark(), says={"sessions": 9, "drain": told()})),
        "",
        2,
        "progressing",
    ),
    Row(
        "A6 an old pod that crash-loops holds nothing and goes at once",
        want(),
        sight(crashing(0, OLD)),
        "delete chat-0 grace 140",
        1,
        "progressing",
        "",
    ),
    Row("A6 an old pod that never started goes at once", want(), sight(loading(0, OLD)), "delete chat-0 grace 140"),
    Row("an old pod that no node holds goes at once", want(), sight(pending(0, OLD)), "delete chat-0 grace 140"),
    Row(
        "an old pod whose image never came goes at once",
        want(),
        sight(waiting(0, "ImagePullBackOff", revision=OLD)),
        "delete chat-0 grace 140",
    ),
    Row(
        "A7 an old pod that is not ready but answers is drained, not killed",
        want(),
        sight(pod(0, OLD, ready=False, says={"running": 1})),
        "mark chat-0 rollout",
    ),
    Row(
        "A7 an old pod that does not answer is drained, not killed",
        want(),
        sight(pod(0, OLD, says=None)),
        "mark chat-0 rollout",
    ),
    Row(
        "a new revision that crash-loops stops the rollout",
        want(replicas=2),
        sight(crashing(0), pod(1, OLD)),
        "",
        2,
        "failing",
    ),
    Row(
        "a new revision whose image cannot be pulled stops the rollout",
        want(replicas=2),
        sight(waiting(0, "ErrImagePull", "not found"), pod(1, OLD)),
        "",
        2,
        "failing",
    ),
    Row(
        "a new revision that is not ready within startup.timeout stops the rollout",
        want(replicas=2, startup_timeout=60.0),
        sight(loading(0, running_since=NOW - 61, created=NOW - 90), pod(1, OLD)),
        "",
        2,
        "failing",
    ),
    Row(
        "a new revision that refuses its settings stops the rollout at its first exit",
        want(replicas=2),
        sight(loading(0, restarts=1, last_exit=Exit(78, "Error")), pod(1, OLD)),
        "",
        2,
        "failing",
    ),
    Row(
        "waiting for a GPU for an hour does not fail the revision",
        want(replicas=2, startup_timeout=60.0),
        sight(pending(0, created=NOW - 3600), pod(1, OLD)),
        "",
        2,
        "progressing",
    ),
    Row(
        "a failing revision undoes the drain that had begun",
        want(replicas=2),
        sight(crashing(0), pod(1, OLD, mark=mark(), says={"sessions": 2, "drain": told()})),
        "undo chat-1, unmark chat-1",
        2,
        "failing",
    ),
    Row(
        "a fixed spec takes the failing pod first",
        want(replicas=2, revision="fixed"),
        sight(crashing(0, NEW), pod(1, OLD)),
        "delete chat-0 grace 140",
    ),
    Row(
        "a missing Secret holds the rollout before any pod is touched",
        want(hold="missing: Secret hub"),
        sight(pod(0, OLD)),
        "",
        1,
        "failing",
    ),
    Row(
        "limits that do not fit change no pod",
        want(blocked="host memory 9 GiB exceeds 8 GiB"),
        sight(pod(0, OLD)),
        "",
        1,
    ),
    Row("a preview changes no pod", want(preview=True), sight(pod(0, OLD)), "", 1),
    Row("a preview scales nothing", want(preview=True, replicas=3), sight(pod(0)), "", 1),
    Row(
        "E58 a changed value of a referenced Secret key replaces the pod",
        want(secrets_digest="b"),
        sight(pod(0, secrets_digest="a")),
        "mark chat-0 rollout",
    ),
    Row("E58 an unchanged one does not", want(secrets_digest="a"), sight(pod(0, secrets_digest="a")), ""),
    Row(
        "a replacement on a lost node holds the rollout and does not fail it",
        want(replicas=2),
        sight(pod(0, ready=False, says=None), pod(1, OLD, node="node-b"), nodes=lost()),
        "",
        2,
        "progressing",
    ),
]

DRAIN = [
    Row(
        "A9 a marked pod is quiesced before anything waits",
        want(),
        sight(pod(0, OLD, mark=mark(since=10), says={"sessions": 2, "queued": 1})),
        "quiesce chat-0 590s",
    ),
    Row(
        "sessions that are not idle for the grace are waited for",
        want(),
        sight(pod(0, OLD, mark=mark(), says={"sessions": 2, "idle": 119.0, "drain": told()})),
        "",
        poll=2,
    ),
    Row(
        "sessions that are idle for the grace are not",
        want(),
        sight(pod(0, OLD, mark=mark(), says={"sessions": 2, "idle": 120.0, "drain": told()})),
        "close chat-0",
        poll=2,
    ),
    Row(
        "A9 a queued request counts as busy",
        want(),
        sight(pod(0, OLD, mark=mark(), says={"queued": 1, "drain": told()})),
        "",
    ),
    Row(
        "B14 a running stream is waited for",
        want(),
        sight(pod(0, OLD, mark=mark(), says={"running": 1, "drain": told()})),
        "",
    ),
    Row(
        "WaitForRequests does not wait for sessions",
        want(policy="WaitForRequests"),
        sight(pod(0, OLD, mark=mark(timeout=120.0), says={"sessions": 5, "idle": 0.0, "drain": told(remaining=120)})),
        "close chat-0",
    ),
    Row(
        "WaitForRequests waits for a request",
        want(policy="WaitForRequests"),
        sight(pod(0, OLD, mark=mark(timeout=120.0), says={"running": 1, "drain": told(remaining=120)})),
        "",
    ),
    Row(
        "Immediate tells the server",
        want(policy="Immediate"),
        sight(pod(0, OLD, mark=mark(timeout=0.0), says={"sessions": 5, "running": 2})),
        "quiesce chat-0 0s",
    ),
    Row(
        "Immediate waits for nothing",
        want(policy="Immediate"),
        sight(pod(0, OLD, mark=mark(timeout=0.0), says={"sessions": 5, "running": 2, "drain": told(remaining=0)})),
        "force close chat-0",
    ),
    Row(
        "at the deadline the close is forced",
        want(),
        sight(pod(0, OLD, mark=mark(since=600), says={"sessions": 2, "running": 1, "drain": told(remaining=0)})),
        "force close chat-0",
    ),
    Row(
        "at the deadline a pod that does not answer is removed, and its boot is told",
        want(),
        sight(pod(0, OLD, mark=mark(since=600), says=None), seen=(seen(pod(0, OLD), sessions=4),)),
        "delete chat-0 grace 140",
        1,
        None,
        "rollout",
    ),
    Row(
        "A7 before the deadline a pod that does not answer counts as busy",
        want(),
        sight(pod(0, OLD, mark=mark(since=599), says=None)),
        "",
    ),
    Row(
        "A11 an operator that starts in the middle keeps the deadline",
        want(),
        sight(pod(0, OLD, mark=mark(since=500), says={"sessions": 1, "idle": 0.0, "drain": told(remaining=100)})),
        "",
    ),
    Row(
        "A11 a mark that cannot be read is made anew",
        want(),
        sight(pod(0, OLD, mark=Mark.load("{broken"), says={"drain": told()})),
        "mark chat-0 rollout",
    ),
    Row(
        "a server that forgot its drain is told again",
        want(),
        sight(pod(0, OLD, mark=mark(since=100), says={"sessions": 1, "idle": 0.0})),
        "quiesce chat-0 500s",
    ),
    Row(
        "a server whose clock runs off by more than 5 s is told again",
        want(),
        sight(pod(0, OLD, mark=mark(since=100), says={"sessions": 1, "idle": 0.0, "drain": told(remaining=494)})),
        "quiesce chat-0 500s",
    ),
    Row(
        "one that is off by less is not",
        want(),
        sight(pod(0, OLD, mark=mark(since=100), says={"sessions": 1, "idle": 0.0, "drain": told(remaining=496)})),
        "",
    ),
    Row(
        "a shorter sessionTimeout applies to a drain that runs",
        want(session_timeout=60.0),
        sight(pod(0, OLD, mark=mark(since=30), says={"sessions": 1, "idle": 0.0, "drain": told(remaining=570)})),
        "mark chat-0 rollout",
    ),
    Row(
        "the grace of a deletion follows requestTimeout",
        want(request_timeout=600.0),
        sight(pod(0, OLD, mark=mark(), says={"drain": told(closed=True)})),
        "peers to chat-0, delete chat-0 grace 620",
    ),
    Row(
        "F a drain of a pod that is wanted again is undone",
        want(revision=OLD),
        sight(pod(0, OLD, mark=mark(), says={"sessions": 1, "drain": told()}), current_revision=OLD),
        "undo chat-0, unmark chat-0",
    ),
    Row(
        "an undo waits for a pod that does not answer",
        want(revision=OLD),
        sight(pod(0, OLD, mark=mark(), says=None), current_revision=OLD),
        "",
    ),
    Row(
        "a mark on a pod that holds nothing is just taken away",
        want(revision=OLD),
        sight(loading(0, OLD, mark=mark(), says=None), current_revision=OLD),
        "unmark chat-0",
    ),
    Row(
        "B28 a drain of the pod's own preStop is not undone",
        want(),
        sight(pod(0, deleting=True, says={"drain": told("eviction")})),
        "",
    ),
    Row(
        "B26 an evicted pod's own drain is left to it",
        want(replicas=2),
        sight(pod(0, deleting=True, evicted=True, says={"running": 1, "drain": told("eviction")}), pod(1)),
        "",
    ),
]

SCALE = [
    Row("scaling up is applied at once", want(replicas=3), sight(pod(0)), "", 3),
    Row("scaling down marks the highest ordinal", want(), sight(pod(0), pod(1), pod(2)), "mark chat-2 scale-down", 3),
    Row(
        "B14 replicas stay while the victim has a stream",
        want(),
        sight(pod(0), pod(1, mark=mark("scale-down"), says={"running": 1, "drain": told("scale-down")})),
        "",
        2,
    ),
    Row(
        "a closed victim leaves by lowering replicas, after its boot is told",
        want(),
        sight(pod(0), pod(1, mark=mark("scale-down"), says={"drain": told("scale-down", closed=True)})),
        "peers to chat-0, peers to chat-1",
        1,
        None,
        "scale-down",
    ),
    Row("a victim that is loading leaves at once", want(), sight(pod(0), loading(1)), "", 1),
    Row("a victim that does not exist leaves at once", want(), sight(pod(0), statefulset_replicas=2), "", 1),
    Row("only one ordinal leaves per step", want(), sight(pod(0), loading(1), loading(2)), "", 2),
    Row(
        "scaling up again undoes the victim's drain",
        want(replicas=2),
        sight(pod(0), pod(1, mark=mark("scale-down"), says={"drain": told("scale-down")})),
        "undo chat-1, unmark chat-1",
        2,
    ),
    Row(
        "a rollout waits while a victim drains",
        want(),
        sight(pod(0, OLD), pod(1, OLD)),
        "mark chat-1 scale-down",
        2,
        "progressing",
    ),
    Row("E64 scaling to zero drains like any other", want(replicas=0), sight(pod(0)), "mark chat-0 scale-down", 1),
    Row(
        "A13 replicas are never lowered below the wanted number",
        want(replicas=2),
        sight(pod(0), pod(1), statefulset_replicas=2),
        "",
        2,
    ),
]

SUSPEND = [
    Row(
        "suspending drains all pods together",
        want(replicas=2, suspend=True),
        sight(pod(0), pod(1)),
        "mark chat-0 suspend, mark chat-1 suspend",
        2,
    ),
    Row(
        "pods of a suspended server go together, when the last one may",
        want(replicas=2, suspend=True),
        sight(
            pod(0, mark=mark("suspend"), says={"drain": told("suspend", closed=True)}),
            pod(1, mark=mark("suspend"), says={"running": 1, "drain": told("suspend")}),
        ),
        "",
        2,
    ),
    Row(
        "when all are closed replicas become 0 and every boot is told",
        want(replicas=2, suspend=True),
        sight(
            pod(0, mark=mark("suspend"), says={"drain": told("suspend", closed=True)}),
            pod(1, mark=mark("suspend"), says={"drain": told("suspend", closed=True)}),
        ),
        "peers to chat-0, peers to chat-1",
        0,
        None,
        "suspend suspend",
    ),
    Row("a suspended server at rest gets nothing done", want(suspend=True), sight(statefulset_replicas=0), "", 0),
    Row("resuming applies the replicas", want(replicas=2), sight(statefulset_replicas=0), "", 2),
    Row(
        "resuming in the middle of a drain undoes it",
        want(),
        sight(pod(0, mark=mark("suspend"), says={"sessions": 1, "drain": told("suspend")})),
        "undo chat-0, unmark chat-0",
        1,
    ),
]

NODES = [
    Row(
        "a cordoned node's pods are marked at once, all of them",
        want(replicas=2),
        sight(pod(0), pod(1), nodes=cordoned("node-a")),
        "mark chat-0 cordon, mark chat-1 cordon",
    ),
    Row(
        "no deadline applies on a cordoned node",
        want(),
        sight(
            pod(0, mark=mark("cordon", since=9999, timeout=None), says={"running": 1, "drain": told("cordon", 600000)}),
            nodes=cordoned("node-a"),
        ),
        "",
    ),
    Row(
        "its quiet pods are closed",
        want(),
        sight(pod(0, mark=mark("cordon", timeout=None), says={"drain": told("cordon")}), nodes=cordoned("node-a")),
        "close chat-0",
    ),
    Row(
        "its closed pods are deleted",
        want(),
        sight(
            pod(0, mark=mark("cordon", timeout=None), says={"drain": told("cordon", closed=True)}),
            nodes=cordoned("node-a"),
        ),
        "peers to chat-0, delete chat-0 grace 140",
        1,
        None,
        "cordon",
    ),
    Row(
        "an uncordoned node's pods are wanted again",
        want(),
        sight(pod(0, mark=mark("cordon", timeout=None), says={"drain": told("cordon")})),
        "undo chat-0, unmark chat-0",
    ),
    Row(
        "a pod that would come back to the cordoned node is left",
        want(),
        sight(pod(0, tolerates_cordon=True), nodes=cordoned("node-a")),
        "",
    ),
    Row(
        "a pod on a lost node is never forced",
        want(),
        sight(pod(0, ready=False, says=None), nodes=lost(since=9999)),
        "",
        1,
    ),
    Row(
        "C32 a pod whose GPU fails in restart after restart is deleted to get another device",
        want(),
        sight(crashing(0, code=70, restarts=3), seen=()),
        "delete chat-0 grace 140",
    ),
    Row("C32 one GPU failure is left to the kubelet", want(), sight(crashing(0, code=70, restarts=2), seen=()), ""),
    Row("C31 a crash loop of another kind is left to the kubelet", want(), sight(crashing(0, code=1), seen=()), ""),
]

LIMITS = [
    Row("B24 changed limits are pushed, not rolled", want(limits_generation=2), sight(pod()), "limits 2 to chat-0", 1),
    Row(
        "an unreachable pod is tried again later",
        want(replicas=2, limits_generation=2),
        sight(pod(0), pod(1, says=None)),
        "limits 2 to chat-0",
    ),
    Row("a pod with newer limits is left", want(limits_generation=2), sight(pod(says={"generation": 3})), ""),
    Row(
        "more memory is asked for before the limits are pushed",
        want(limits_generation=2, memory_bytes=10 * GiB),
        sight(pod(resize=sizes(8))),
        "resize chat-0 10Gi",
    ),
    Row(
        "the limits wait until the memory is there",
        want(limits_generation=2, memory_bytes=10 * GiB),
        sight(pod(resize=sizes(10, 8))),
        "",
        poll=2,
    ),
    Row(
        "then they are pushed",
        want(limits_generation=2, memory_bytes=10 * GiB),
        sight(pod(resize=sizes(10))),
        "limits 2 to chat-0",
    ),
    Row(
        "less memory: the limits are pushed first",
        want(limits_generation=2, memory_bytes=6 * GiB),
        sight(pod(resize=sizes(8))),
        "limits 2 to chat-0",
    ),
    Row(
        "less memory: then the pod shrinks",
        want(limits_generation=2, memory_bytes=6 * GiB),
        sight(pod(resize=sizes(8), says={"generation": 2})),
        "resize chat-0 6Gi",
    ),
    Row(
        "an infeasible resize becomes a restart",
        want(memory_bytes=10 * GiB),
        sight(pod(resize=sizes(10, 8, pending="Infeasible", message="node has 9Gi"))),
        "mark chat-0 rollout",
        1,
        "progressing",
    ),
    Row(
        "a resize that the API server refused becomes a restart",
        want(memory_bytes=10 * GiB),
        sight(pod(resize=sizes(8, refused=f"{10 * GiB}/1000 no room"))),
        "mark chat-0 rollout",
    ),
    Row(
        "a refusal of other sizes is forgotten",
        want(memory_bytes=9 * GiB),
        sight(pod(resize=sizes(8, refused=f"{10 * GiB}/1000 no room"))),
        "resize chat-0 9Gi",
    ),
    Row(
        "a deferred resize is waited for",
        want(memory_bytes=10 * GiB),
        sight(pod(resize=sizes(10, 8, pending="Deferred"))),
        "",
        1,
        "done",
    ),
    Row("without a plan no pod is resized", want(memory_bytes=None), sight(pod(resize=sizes(8))), ""),
    Row(
        "pods of an older revision are not resized",
        want(replicas=2, memory_bytes=10 * GiB),
        sight(loading(0), pod(1, OLD, resize=sizes(8))),
        "",
    ),
]

RESTARTED = pod(says={"boot": "boot-b"}, restarts=1, last_exit=Exit(139, "Error"))
LEDGER = [
    Row(
        "B21 a container that was killed for memory loses its boot",
        want(),
        sight(replace(RESTARTED, last_exit=Exit(137, "OOMKilled")), seen=(seen(pod(), sessions=3),)),
        "peers to chat-0",
        lost="out-of-memory",
    ),
    Row(
        "B21 a container that crashed loses its boot",
        want(),
        sight(RESTARTED, seen=(seen(pod()),)),
        "peers to chat-0",
        lost="crash",
    ),
    Row(
        "a crash-looping container loses the boot that was seen",
        want(),
        sight(crashing(0, code=139), seen=(seen(pod()),)),
        "",
        lost="crash",
    ),
    Row(
        "a boot that is in the ledger is counted once",
        want(),
        sight(
            RESTARTED,
            seen=(seen(pod()),),
            peers=PeersUpdate(
                generation=1, lost=[LostBoot(ordinal=0, boot_id="boot0", cause="crash", at="2026-01-01T00:00:00Z")]
            ),
        ),
        "peers to chat-0",
        lost="",
    ),
    Row(
        "a pod that vanished unseen is unknown",
        want(),
        sight(loading(0, uid="other"), seen=(seen(pod()),)),
        "peers to chat-0",
        lost="unknown",
    ),
    Row(
        "a pod that was seen going was evicted",
        want(),
        sight(loading(0, uid="other"), seen=(seen(pod(), state="Terminating"),)),
        "peers to chat-0",
        lost="eviction",
    ),
    Row(
        "a pod that vanished with its node is told so",
        want(),
        sight(loading(0, uid="other", node="node-b"), seen=(seen(pod()),), nodes=lost()),
        "peers to chat-0",
        lost="node-lost",
    ),
    Row(
        "a pod on a lost node may still be alive: nothing is told",
        want(),
        sight(pod(0, ready=False, says=None), seen=(seen(pod()),), nodes=lost()),
        "",
        lost="",
    ),
    Row(
        "a pod that does not answer may still be alive: nothing is told",
        want(),
        sight(pod(says=None), seen=(seen(pod()),)),
        "",
        lost="",
    ),
    Row(
        "a terminating pod may still answer: nothing is told",
        want(),
        sight(pod(deleting=True, evicted=True), seen=(seen(pod()),)),
        "",
        lost="",
    ),
    Row("a pod with an older peers table gets the new one", want(), sight(pod(says={"peers": 0})), "peers to chat-0"),
    Row(
        "B22 a new pod is told to the others",
        want(replicas=2),
        sight(pod(0), pod(1), peers=sight(pod(0)).peers),
        "peers to chat-0, peers to chat-1",
    ),
]

ROWS = [*REST, *ROLLOUT, *DRAIN, *SCALE, *SUSPEND, *NODES, *LIMITS, *LEDGER]


@pytest.mark.parametrize("row", ROWS, ids=[row.sentence.replace(" ", "_") for row in ROWS])
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


@pytest.mark.parametrize("row", ROWS, ids=[row.sentence.replace(" ", "_") for row in ROWS])
def test_the_plan_only_depends_on_its_arguments(row: Row) -> None:
    assert plan(row.want, row.sight, NOW) == plan(row.want, row.sight, NOW)


def test_there_are_at_least_eighty_situations_and_each_has_its_own_sentence() -> None:
    assert len(ROWS) >= 80
    assert len({row.sentence for row in ROWS}) == len(ROWS)


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
