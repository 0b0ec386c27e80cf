"""What clients may see of sessions and requests: the values behind service.SessionView and service.RequestView."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SessionInfo:
    """service.SessionView."""

    id: str
    created_seconds_ago: float
    idle_seconds: float
    turns: int
    last_request_id: str | None
    in_flight: bool
    context_tokens: int
    history_bytes: int


@dataclass(frozen=True)
class RequestInfo:
    """service.RequestView."""

    id: str
    session_id: str | None
    phase: str
    queue_position: int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reserved_bytes: int
    age_seconds: float
