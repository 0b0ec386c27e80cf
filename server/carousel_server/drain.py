"""Whether this pod takes new work, and until when. Pure: `now` is an argument, times are monotonic seconds."""

from dataclasses import dataclass

from carousel_server.admin_state import DrainRequest, DrainState


@dataclass
class Drain:
    """A drain in progress, or none."""

    request: DrainRequest | None = None
    deadline: float = 0.0
    closed: bool = False

    @property
    def active(self) -> bool:
        """New sessions and sessionless requests are refused."""
        return self.request is not None

    def begin(self, request: DrainRequest, now: float) -> None:
        """Start, or replace the earlier request; a closed drain stays closed."""
        self.request, self.deadline = request, now + request.remaining_seconds

    def close(self, *, quiet: bool, force: bool) -> bool:
        """Refuse every further turn; only if quiet, or forced."""
        if self.request is None or not (quiet or force):
            return False
        self.closed = True
        return True

    def undo(self) -> None:
        """Take work again."""
        self.request, self.deadline, self.closed = None, 0.0, False

    def state(self, now: float) -> DrainState | None:
        """As the admin port shows it."""
        if self.request is None:
            return None
        return DrainState(
            reason=self.request.reason,
            remaining_seconds=max(0.0, self.deadline - now),
            idle_grace_seconds=self.request.idle_grace_seconds,
            closed=self.closed,
        )

    def session_seconds(self, now: float) -> float | None:
        """For `X-Session-Deadline`: how long a session whose turn ends now can count on; None without a drain."""
        if self.request is None:
            return None
        return max(0.0, min(self.deadline - now, self.request.idle_grace_seconds))
