"""One pod that is told to go: marked, quiesced, waited for, closed, removed, or wanted again."""

from carousel_operator.view import Mark

from tests.operator.plan_rows.row import Row
from tests.operator.scene import OLD, loading, mark, pod, seen, sight, told, want

ROWS = [
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
