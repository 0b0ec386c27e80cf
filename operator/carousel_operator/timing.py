"""Times as Kubernetes writes them. Every clock value comes from the caller."""

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """Seconds since the epoch as `2026-01-31T14:05:10Z`."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock(seconds: float) -> str:
    """Seconds since the epoch as `14:05:10Z`, for messages."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%H:%M:%SZ")


def parse(text: str | None) -> float | None:
    """An RFC 3339 time to seconds since the epoch; None for a missing or malformed one."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
