"""Every error a client can see: one class, one closed table of codes. Knows no transport."""

from collections.abc import Mapping
from typing import Any, Final

# code -> (HTTP status, OpenAI error type); docs/api.md has a line on each.
CODES: Final[Mapping[str, tuple[int, str]]] = {
    "invalid_request": (400, "invalid_request_error"),
    "unknown_field": (400, "invalid_request_error"),
    "unsupported": (400, "invalid_request_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "limits_exceeded": (400, "invalid_request_error"),
    "invalid_api_key": (401, "authentication_error"),
    "not_found": (404, "not_found_error"),
    "model_not_found": (404, "not_found_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "request_timeout": (408, "invalid_request_error"),
    "session_busy": (409, "conflict_error"),
    "request_id_in_use": (409, "conflict_error"),
    "already_completed": (409, "conflict_error"),
    "stale_generation": (409, "conflict_error"),
    "not_quiet": (409, "conflict_error"),
    "session_lost": (410, "session_error"),
    "session_expired": (410, "session_error"),
    "body_too_large": (413, "invalid_request_error"),
    "head_too_large": (431, "invalid_request_error"),
    "queue_full": (429, "rate_limit_error"),
    "sessions_full": (429, "rate_limit_error"),
    "session_full": (429, "rate_limit_error"),
    "cancelled": (499, "cancelled"),
    "generation_failed": (500, "server_error"),
    "internal_error": (500, "server_error"),
    "loading": (503, "server_error"),
    "draining": (503, "server_error"),
    "owner_unreachable": (503, "server_error"),
    "server_shutdown": (503, "server_error"),
    "out_of_memory": (503, "server_error"),
}
RETRY_AFTER: Final = frozenset({429, 503})


class Failure(Exception):
    """An error for the client: what happened, the numbers, and what to do next.

    `param` names the field at fault; `details` are extra members of the error object (`cause`, `at`);
    `retry_after` is in seconds and set on every 429 and 503.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status, self.type = CODES[code]
        self.message = message
        self.param = param
        self.retry_after = retry_after if retry_after is not None or self.status not in RETRY_AFTER else 1.0
        self.details = dict(details or {})

    def body(self) -> dict[str, Any]:
        """The JSON body, in the OpenAI shape."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**error, **self.details}}
