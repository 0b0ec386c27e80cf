"""One JSON line per request: who, what, how long, how it ended; never what was said.

Written by a thread of its own: a log reader that stands still never stops the event loop.
"""

import logging
import logging.handlers
import queue
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from pydantic_core import to_json


@dataclass
class Trace:
    """What is known of one HTTP request; filled in on its way. Times are the event loop's seconds."""

    method: str
    path: str
    client: str
    started: float
    correlation: str | None = None  # X-Request-ID as the client sent it
    id: str | None = None  # the id of a turn
    session: str | None = None
    key: str = ""
    forwarded_from: str | None = None  # boot id of the pod that sent it on
    forwarded_to: int | None = None  # ordinal of the pod that answers
    status: int = 0
    outcome: str = ""  # ok, an error code, or disconnect
    lost_cause: str = ""  # of an answer session_lost
    stream: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str | None = None
    prepared: float | None = None
    work_begun: float | None = None
    first_output: float | None = None
    last_output: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    labels: Mapping[str, Any] = field(default_factory=dict)  # user and metadata

    @property
    def final_outcome(self) -> str:
        """`ok`, an error code, `disconnect` or `write_timeout`."""
        return self.outcome or ("ok" if 200 <= self.status < 400 else "error")

    def note_output(self, now: float) -> float | None:
        """Text or a call went out; returns the seconds since the one before it."""
        self.note_work(now)
        before, self.last_output = self.last_output, now
        if before is None:
            self.first_output = now
            return None
        return now - before

    def note_work(self, now: float) -> None:
        """The worker has begun with it."""
        if self.work_begun is None:
            self.work_begun = now

    def record(self, now: float, wall: str) -> dict[str, Any]:
        """The log line's members; absent ones are left out."""
        line: dict[str, Any] = {
            "time": wall,
            "event": "request",
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "outcome": self.final_outcome,
            "client": self.client,
            "key": self.key,
            "request_id": self.id,
            "correlation_id": self.correlation,
            "session_id": self.session,
            "forwarded_from": self.forwarded_from,
            "forwarded_to": self.forwarded_to,
            "stream": self.stream or None,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "finish": self.finish,
            "prepare_ms": _ms(self.prepared, self.started),
            "queue_ms": None if self.prepared is None else _ms(self.work_begun, self.prepared),
            "first_output_ms": _ms(self.first_output, self.started),
            "total_ms": _ms(now, self.started),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            **self.labels,
        }
        return {name: value for name, value in line.items() if value not in (None, "")}


def _ms(end: float | None, start: float) -> float | None:
    return None if end is None else round((end - start) * 1000, 1)


class JsonLines(logging.Formatter):
    """Log records as JSON lines; a record's `line` attribute is the line itself."""

    def format(self, record: logging.LogRecord) -> str:
        line = getattr(record, "line", None)
        if line is None:
            line = {
                "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
                "event": "log",
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
            }
            if record.exc_info:
                line["exception"] = self.formatException(record.exc_info)
        return to_json(line, fallback=str).decode()


class LogThread:
    """Routes all logging of the process through one queue to one stream, until `stop`."""

    def __init__(self, stream: TextIO = sys.stderr, level: int = logging.INFO) -> None:
        import time

        formatter = JsonLines()
        formatter.converter = time.gmtime
        output = logging.StreamHandler(stream)
        output.setFormatter(formatter)
        records: queue.Queue[logging.LogRecord] = queue.Queue(maxsize=10_000)
        self._listener = logging.handlers.QueueListener(records, output)
        self._handler = _Dropping(records)
        self._level = level

    def start(self) -> None:
        root = logging.getLogger()
        root.handlers = [self._handler]
        root.setLevel(self._level)
        for noisy in ("httpx", "httpcore", "uvicorn.error"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self._listener.start()

    def stop(self) -> None:
        self._listener.stop()


class _Dropping(logging.handlers.QueueHandler):
    """A full queue drops lines: a log that nobody reads may not cost memory without bound."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            return
