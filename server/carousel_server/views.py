"""What clients may see of sessions and requests: the values behind service.SessionView and service.RequestView."""

from dataclasses import dataclass

from carousel_server.registry import Record
from carousel_server.sessions import Session


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

    @classmethod
    def of(cls, session: Session, now: float) -> "SessionInfo":
        """As it is at `now`."""
        return cls(
            id=session.id,
            created_seconds_ago=now - session.created,
            idle_seconds=0.0 if session.turn is not None else now - session.used,
            turns=session.turns,
            last_request_id=session.last_request_id,
            in_flight=session.turn is not None,
            context_tokens=session.context_tokens,
            history_bytes=session.bytes,
        )


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

    @classmethod
    def of(cls, record: Record, queue_position: int | None, reserved_bytes: int, now: float) -> "RequestInfo":
        """As it is at `now`."""
        return cls(
            id=record.id,
            session_id=record.request.session_id,
            phase=record.phase,
            queue_position=queue_position,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            output_tokens=record.output_tokens,
            reserved_bytes=reserved_bytes,
            age_seconds=now - record.created,
        )
