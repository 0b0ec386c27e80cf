"""The streaming stages against slow obvious references: random texts in random splits, with fixed seeds.

220,000 inputs in all. Random choice among marks and fragments of marks reaches what random characters never would.
"""

import random
from collections.abc import Callable, Sequence

import pytest
from carousel_server.stop import StopMatcher
from carousel_server.tool_call import CallParser
from carousel_server.tool_value import unframe
from carousel_server.turn import Tool
from carousel_server.utf8 import Utf8Stream

from tests.cases import replies
from tests.cases.replay import Played
from tests.unit import text_reference as reference

DECLARED = {"f": {"a", "b"}, "go": set[str]()}
TOOLS = tuple(
    Tool(name, {"function": {"name": name, "parameters": {"properties": {key: {"type": "string"} for key in keys}}}})
    for name, keys in DECLARED.items()
)
WHOLE = [
    *("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", "</parameter"),
    *("<function=f>", "<function=go>", "<function=g>", "<parameter=a>", "<parameter=b>", "<parameter=x>"),
    *("</parameterfunction>", "<tool_call>\n<function=f>\n", "<function=f>\n<parameter=a>\n"),
    *("<function=f><parameter=a>", "\n<parameter=a>\n1\n</parameter>\n", "\n</function>\n</tool_call>\n"),
]
LOOSE = [*"\n\n\n \t`~<>/=-fabgox1", "```", "~~~", "\n```\n", "- ", "x", "text", "\r\n", "<tool", "</para", "<fun"]


def pieces_of(data: str, rng: random.Random) -> list[str]:
    """A random split: one piece, single characters, or a few cuts."""
    kind = rng.randrange(4)
    if kind == 0:
        return [data]
    if kind == 1:
        return list(data)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def text_of_marks(rng: random.Random) -> str:
    return "".join(rng.choice(WHOLE if rng.random() < 0.6 else LOOSE) for _ in range(rng.randrange(1, 16)))


def parsed(pieces: Sequence[str]) -> tuple[str, list[tuple[str, dict[str, str]]]]:
    parser = CallParser(TOOLS)
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.close()
    text = "".join(part for part in parts if isinstance(part, str))
    return text, [(part.name, dict(part.arguments)) for part in parts if not isinstance(part, str)]


def check_calls(rng: random.Random) -> None:
    text = text_of_marks(rng)
    content, calls = reference.calls(text, DECLARED)
    expected = content, [(name, {key: unframe(raw) for key, raw in values}) for name, values in calls]
    assert parsed(pieces_of(text, rng)) == expected, text


def check_stops(rng: random.Random) -> None:
    alphabet = rng.choice(["ab", "abc", "a\n"])
    text = "".join(rng.choices(alphabet, k=rng.randrange(40)))
    stops = tuple("".join(rng.choices(alphabet, k=rng.randrange(1, 6))) for _ in range(rng.randrange(1, 5)))
    matcher = StopMatcher(stops)
    shown, arrived = "", ""
    for piece in pieces_of(text, rng):
        shown, arrived = shown + matcher.feed(piece), arrived + piece
        certain, found = reference.stopped(arrived, stops)
        held = 0 if found else max(n for stop in stops for n in range(len(stop)) if arrived.endswith(stop[:n]))
        assert (shown, matcher.found) == (certain[: len(certain) - held], found), (text, stops)
    assert shown + matcher.close() == reference.stopped(text, stops)[0], (text, stops)


def check_utf8(rng: random.Random) -> None:
    runes = ["a", "é", "→", "🚀", "\u0800", "\uffff"]
    data = b"".join(
        rng.choice(runes).encode() if rng.random() < 0.6 else bytes([rng.randrange(256)])
        for _ in range(rng.randrange(24))
    )
    stream = Utf8Stream()
    shown = ""
    for piece in pieces_of(data.decode("latin-1"), rng):
        shown += stream.feed(piece.encode("latin-1"))
    assert shown + stream.close() == reference.decoded(data), data


def check_replies(rng: random.Random) -> None:
    """Every stage in a row: the stream, the message that a session commits, and the reference over the whole bytes."""
    stops = tuple(rng.sample(["x1", "</tool", "\n\n", "🚀"], k=rng.randrange(3)))
    data = (text_of_marks(rng) + "🚀").encode()[: rng.randrange(1, 120)]
    pieces = [piece.encode("latin-1") for piece in pieces_of(data.decode("latin-1"), rng)]
    played = Played(pieces, replies.Reply("", "", tools=TOOLS, stop=stops), logprobs=True)
    text, _ = reference.stopped(reference.decoded(data), stops)
    content, calls = reference.calls(text, DECLARED)
    assert (played.streamed, played.message.content) == (content, content), (pieces, stops)
    assert played.calls == [(call.name, dict(call.arguments)) for call in played.message.tool_calls]
    assert [name for name, _ in played.calls] == [name for name, _ in calls], (pieces, stops)
    assert played.reply.finish == ("tool_calls" if calls else "stop")
    assert len(played.reply.logprobs) == played.fed


@pytest.mark.parametrize(
    ("check", "count"),
    [(check_calls, 70_000), (check_stops, 70_000), (check_utf8, 70_000), (check_replies, 10_000)],
    ids=["calls", "stops", "utf8", "replies"],
)
def test_random_splits_of_random_texts_agree_with_the_reference(
    check: Callable[[random.Random], None], count: int
) -> None:
    for seed in range(count):
        check(random.Random(seed))
