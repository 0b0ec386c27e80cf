"""Events as frames: the quick way for text writes the same bytes as the whole chunk would."""

import json

import pytest
from carousel_server.shapes import ChatShape, CompletionShape
from carousel_server.sse import Frames, frame
from carousel_server.turn import CallDelta, TextDelta, TokenLogprob, ToolCall

TEXTS = ["", "a", 'say "no"\n', "\0", "back\\slash \u2028 🚀", "x" * 5000]
NAMES = ["r1", "\0", '"\0"', 'content":"\0"']


@pytest.mark.parametrize("kind", [ChatShape, CompletionShape])
@pytest.mark.parametrize("logprobs", [True, False])
@pytest.mark.parametrize("include_usage", [True, False])
def test_a_frame_of_text_is_the_whole_chunk_with_any_id_and_model(kind, logprobs, include_usage):
    for name in NAMES:
        shape = kind(id=name, created=7, model=name, logprobs=logprobs, include_usage=include_usage)
        frames = Frames(shape)
        for text in TEXTS:
            assert frames.output(TextDelta(text)) == frame(shape.text(TextDelta(text)))


def test_a_frame_with_logprobs_has_them():
    shape = ChatShape(id="r", created=7, model="m", logprobs=True, include_usage=False)
    found = Frames(shape).output(TextDelta("a", (TokenLogprob("a", b"a", -0.5),)))
    [choice] = json.loads(found.removeprefix(b"data: "))["choices"]
    assert [one["logprob"] for one in choice["logprobs"]["content"]] == [-0.5]


def test_the_offsets_of_a_plain_completion_count_what_was_sent_before():
    shape = CompletionShape(id="r", created=7, model="m", logprobs=True, include_usage=False)
    frames, offsets = Frames(shape), []
    for text in ("ab", "cde", "f"):
        found = frames.output(TextDelta(text, (TokenLogprob(text, text.encode(), -0.5),)))
        offsets += json.loads(found.removeprefix(b"data: "))["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, 2, 5]


def test_a_call_is_its_name_and_then_its_arguments():
    shape = ChatShape(id="r", created=7, model="m", logprobs=False, include_usage=False)
    found = Frames(shape).output(CallDelta(0, ToolCall("call_1", "find", {"glob": "*" * 100})))
    chunks = [json.loads(line.removeprefix("data: ")) for line in found.decode().split("\n\n") if line]
    calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks]
    assert calls[0]["function"] == {"name": "find", "arguments": ""}
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"glob": "*" * 100}
