"""A turn's events as bytes of a server-sent event stream. Knows no socket and no claim."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from carousel_server.shapes import Shape
from carousel_server.turn import CallDelta, Completion, Progress, TextDelta

DONE = b"data: [DONE]\n\n"


def frame(payload: Mapping[str, Any]) -> bytes:
    """One event."""
    return b"data: " + to_json(payload) + b"\n\n"


def comment(progress: Progress | None) -> bytes:
    """A line that clients skip and people read: where the request is."""
    if progress is None:
        return b": generating\n\n"
    if progress.phase == "queued":
        return f": queued {progress.done}\n\n".encode()
    return f": prefill {progress.done}/{progress.total}\n\n".encode()


class Frames:
    """The frames of one stream. Text alone is set between a head and a tail that are the same in all of its frames."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        # The text is the last string of a frame that a client can choose, so the last mark is the text.
        self._head, _, self._tail = frame(shape.text(TextDelta("\0"))).rpartition(to_json("\0"))

    def opening(self) -> bytes:
        """What comes before any output."""
        return b"".join(map(frame, self._shape.opening()))

    def output(self, delta: TextDelta | CallDelta) -> bytes:
        """Text, or one call in several frames."""
        if isinstance(delta, CallDelta):
            return b"".join(map(frame, self._shape.call(delta)))
        if delta.logprobs:
            return frame(self._shape.text(delta))
        return self._head + to_json(delta.text) + self._tail

    def ending(self, completion: Completion) -> bytes:
        """Finish, usage if it was asked for, and the end of the stream."""
        frames = frame(self._shape.finish(completion))
        if self._shape.include_usage:
            frames += frame(self._shape.usage(completion.usage))
        return frames + DONE
