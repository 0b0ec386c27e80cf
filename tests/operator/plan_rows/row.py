"""One situation for the planner and what the plan makes of it."""

from dataclasses import dataclass

from carousel_operator.view import Observed
from carousel_operator.want import Want


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
