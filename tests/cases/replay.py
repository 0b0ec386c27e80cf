"""Plays a reply's bytes through carousel_server.reply in pieces, as an engine's tokens would come."""

from collections.abc import Iterator, Sequence
from typing import Any

from carousel_server.engine.protocol import Selected
from carousel_server.reply import Reply
from carousel_server.turn import CallDelta, Message, TextDelta

from tests.cases import replies


class Pieces:
    """A vocabulary of the pieces of one reply."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token]


class Played:
    """What a client saw of a reply, and what a session would commit."""

    def __init__(self, pieces: Sequence[bytes], case: replies.Reply, **more: Any) -> None:
        options: dict[str, Any] = {"max_bytes": 1 << 20, "call_ids": "t", **more}
        self.reply = Reply(Pieces(pieces), tools=case.tools, parse_calls=case.parse, stop=case.stop, **options)
        self.deltas: list[TextDelta | CallDelta] = []
        self.fed = 0
        for token in range(len(pieces)):
            self.deltas += self.reply.feed(Selected(token, -1.0, ((token, -1.0),)))
            self.fed += 1
            if self.reply.finish is not None:
                break
        self.deltas += self.reply.close(case.then)

    @property
    def streamed(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        return [(d.call.name, dict(d.call.arguments)) for d in self.deltas if isinstance(d, CallDelta)]

    @property
    def message(self) -> Message:
        return self.reply.message


def splits(data: bytes) -> Iterator[list[bytes]]:
    """The reply in one piece, in two at every point, and byte by byte."""
    yield [data]
    for point in range(1, len(data)):
        yield [data[:point], data[point:]]
    yield [data[n : n + 1] for n in range(len(data))]
