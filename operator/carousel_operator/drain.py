"""One pod's drain: what to do next, from what is seen now. Level-based; remembers nothing between calls.

Knows no client: the pod's mark, its admin state and the clock decide.
"""

import math
from dataclasses import dataclass
from typing import Literal

from carousel_operator.view import Mark, PodView, RestartReason

POLL_SECONDS = 2.0
# A server must be told some deadline even where none applies (a cordoned node): a week outlives any session.
NO_DEADLINE_SECONDS = 7 * 24 * 3600.0
# The pod's answer is up to one poll old and its clock runs on: only a larger difference is worth a request.
TELL_AGAIN_SECONDS = 5.0
ENDPOINT_SECONDS, FINAL_FRAME_SECONDS, SPARE_SECONDS = 5, 10, 5

Policy = Literal["WaitForSessions", "WaitForRequests", "Immediate"]
Do = Literal["mark", "quiesce", "wait", "close", "remove"]


@dataclass(frozen=True)
class DrainSettings:
    """`spec.drain`, in seconds."""

    policy: Policy = "WaitForSessions"
    session_timeout: float = 600.0
    request_timeout: float = 120.0
    idle_grace: float = 120.0

    def deadline(self, reason: RestartReason, started_at: float) -> float | None:
        """When the drain stops waiting; None for a cordoned node, whose pods leave only when they are quiet."""
        if reason == "cordon":
            return None
        wait = {"WaitForSessions": self.session_timeout, "WaitForRequests": self.request_timeout, "Immediate": 0.0}
        return started_at + wait[self.policy]

    @property
    def grace_seconds(self) -> int:
        """terminationGracePeriodSeconds: endpoints leave, the longest request ends, final frames, a spare."""
        return math.ceil(self.request_timeout) + ENDPOINT_SECONDS + FINAL_FRAME_SECONDS + SPARE_SECONDS


@dataclass(frozen=True)
class Step:
    """What to do with a draining pod now, and why."""

    do: Do
    why: str
    mark: Mark | None = None  # with "mark"
    remaining: float = 0.0  # with "quiesce"
    idle_grace: float = 0.0  # with "quiesce"
    force: bool = False  # with "close"


def quiet(pod: PodView, settings: DrainSettings) -> bool:
    """True when nothing would be cut: no request, and sessions absent or idle for the grace."""
    state = pod.admin
    if state is None:
        return False
    if state.requests.queued or state.requests.running or state.sessions.in_flight:
        return False
    if settings.policy != "WaitForSessions" or state.sessions.active == 0:
        return True
    idle = state.sessions.newest_use_seconds
    return idle is not None and idle >= settings.idle_grace


def step(pod: PodView, reason: RestartReason, settings: DrainSettings, now: float) -> Step:
    """The next step of this pod's drain for `reason`."""
    if pod.nothing_to_drain:
        return Step("remove", "nothing to drain: no process that could hold a session")
    mark = pod.mark
    # A pod that drains already keeps its clock when only the reason changes; a changed spec.drain moves the deadline.
    started = mark.started_at if mark else now
    due = settings.deadline(reason, started)
    if mark is None or mark.reason != reason or mark.deadline != due:
        return Step("mark", f"drain begins: {reason}", mark=Mark(reason, started, due))
    late = due is not None and now >= due
    if pod.admin is None:
        if late:
            return Step("remove", f"deadline passed and it does not answer ({pod.admin_error or 'no answer'})")
        return Step("wait", f"cannot tell whether it is idle: {pod.admin_error or 'no answer'}")
    told = pod.admin.drain
    if told is not None and told.closed:
        return Step("remove", "closed: it takes no more turns")
    remaining = NO_DEADLINE_SECONDS if due is None else max(0.0, due - now)
    stale = (
        told is None
        or told.reason != reason
        or told.idle_grace_seconds != settings.idle_grace
        or (due is not None and abs(told.remaining_seconds - remaining) > TELL_AGAIN_SECONDS)
    )
    if stale:  # also when it is late: a server closes only a drain that it knows
        return Step("quiesce", "no new sessions", remaining=remaining, idle_grace=settings.idle_grace)
    if late:
        return Step("close", f"deadline passed with {load(pod)}", force=True)
    if quiet(pod, settings):
        return Step("close", f"quiet with {load(pod)}")
    return Step("wait", load(pod))


def load(pod: PodView) -> str:
    """`3 sessions, 1 request`."""
    sessions, requests = pod.sessions, pod.busy_requests
    return f"{sessions} session{'s' * (sessions != 1)}, {requests} request{'s' * (requests != 1)}"
