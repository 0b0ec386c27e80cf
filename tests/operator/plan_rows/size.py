"""How many pods there are: scaled, suspended, and on which nodes."""

from tests.operator.plan_rows.row import Row
from tests.operator.scene import OLD, cordoned, crashing, loading, lost, mark, pod, sight, told, want

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

ROWS = [*SCALE, *SUSPEND, *NODES]
