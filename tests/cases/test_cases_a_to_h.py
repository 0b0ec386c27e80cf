"""Cases A to G at every split point, and those of E, G and H that are not about the text of one reply."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import carousel_server
import pytest
from carousel_server import grammar as grammars
from carousel_server.engine.protocol import Selected
from carousel_server.failure import Failure
from carousel_server.prompt import PromptTemplate
from carousel_server.request import ChatBody, chat_request, validate
from carousel_server.stop import StopMatcher
from carousel_server.tokenizer import Tokenizer
from carousel_server.turn import CallDelta, Constraint, Message, Settings, TextDelta, ToolCall

from tests.cases import replies
from tests.cases.numbers import case
from tests.cases.replay import Played, splits
from tests.cases.replies import REPLIES

EMBEDDED = Path(carousel_server.__file__).parent / "embedded"
TOKENIZER = Tokenizer.load(EMBEDDED)
TEMPLATE = PromptTemplate.load(EMBEDDED, TOKENIZER)


@case(*{reply.number: None for reply in REPLIES})
@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.id)
def test_a_reply_is_read_the_same_at_every_split_point(reply: replies.Reply) -> None:
    for pieces in splits(reply.data):
        played = Played(pieces, reply)
        assert played.streamed == reply.content, pieces
        assert played.calls == list(reply.calls), pieces
        assert played.reply.finish == reply.expected_finish, pieces
        committed = played.message
        assert committed.content == reply.content, pieces
        assert [(c.name, dict(c.arguments)) for c in committed.tool_calls] == list(reply.calls), pieces


@case("E2")
def test_two_calls_have_their_own_index_and_id() -> None:
    says = replies.call("find", glob="a") + "\n" + replies.call("find", glob="b")
    for pieces in splits(says.encode()):
        deltas = [delta for delta in Played(pieces, replies.text("E2", says)).deltas if isinstance(delta, CallDelta)]
        assert [(delta.index, delta.call.id) for delta in deltas] == [(0, "call_t_0"), (1, "call_t_1")]


@case("E2")
def test_without_parallel_calls_the_reply_ends_at_the_first() -> None:
    says = "Hm. " + replies.call("now") + "\n" + replies.call("find", glob="b")
    for pieces in splits(says.encode()):
        played = Played(pieces, replies.text("E2", says), parallel=False)
        assert (played.streamed, played.calls, played.reply.finish) == ("Hm.", [("now", {})], "tool_calls")


@case("A4", "E8", "G2", "F1")
def test_only_what_may_still_change_its_meaning_is_held_back() -> None:
    table = [
        ("plain words", "plain words"),
        ("two words \n", "two words"),
        ("a < b", "a < b"),
        ("a <", "a"),
        ("a <tool_calls", "a <tool_calls"),
        ("a\n\n<tool_call>\n", "a"),
        ("a <function=fi", "a"),
        ("a <function=fx", "a <function=fx"),
        ("a <function=find> b", "a <function=find> b"),
        ("```\n<tool_call>", "```\n<tool_call>"),
        ("well\nUsx", "well\nUsx"),
        ("well\nUse", "well"),
    ]
    for says, shown in table:
        played = Played([says.encode()], replies.text("A4", says, stop=("\nUser",)))
        first = played.deltas[0]
        assert isinstance(first, TextDelta)
        assert first.text == shown, says


@case("E5")
def test_the_byte_limit_ends_a_reply_with_length_and_never_exceeds_it() -> None:
    data = ("🚀🚀🚀 " + replies.call("now")).encode()
    for limit in range(1, data.index(b"</function>")):
        for pieces in splits(data):
            played = Played(pieces, replies.text("E5", ""), max_bytes=limit)
            assert (played.reply.raw_bytes, played.reply.finish) == (limit, "length")
            assert played.streamed == data[:limit].decode(errors="replace")


@case("E3", "E7")
def test_a_reply_that_is_only_a_call_has_no_text_at_all() -> None:
    for pieces in splits(b"<function=now>\n</function>\n</tool_call>\n\n"):
        played = Played(pieces, replies.text("E3", ""))
        assert [type(delta) for delta in played.deltas] == [CallDelta]
        assert json.dumps(played.calls[0][1]) == "{}"
        assert played.message.content == ""


@case("F3", "F7", "G5")
def test_logprobs_count_the_tokens_wherever_their_text_is_held() -> None:
    for says in ("ends with <|im_e", "🚀", "a\n\n" + replies.call("now"), "The quick brown fox"):
        for pieces in splits(says.encode()):
            played = Played(pieces, replies.text("F3", says, stop=("<|im_end|>", "own fox")), logprobs=True)
            sent = [logprob for d in played.deltas if isinstance(d, TextDelta) for logprob in d.logprobs]
            assert tuple(sent) == played.reply.logprobs
            assert [logprob.raw for logprob in sent] == pieces[: played.fed]


@case("G7")
def test_an_empty_stop_string_is_refused_with_its_field() -> None:
    with pytest.raises(Failure) as caught:
        StopMatcher(("x", ""))
    assert (caught.value.code, caught.value.param) == ("invalid_request", "stop")


@case("G3", "G5")
def test_nothing_follows_a_stop() -> None:
    matcher = StopMatcher(("beta",))
    assert [matcher.feed("alpha be"), matcher.feed("ta x"), matcher.feed("y"), matcher.close()] == [
        "alpha ",
        "",
        "",
        "",
    ]
    for pieces in splits("alpha beta🚀 <tool_call>".encode()):
        played = Played(pieces, replies.text("G3", "", stop=("beta",)))
        assert (played.streamed, played.reply.finish) == ("alpha ", "stop")
        with pytest.raises(ValueError, match="has finished"):
            played.reply.feed(Selected(0))


@case("E10")
def test_a_json_format_leaves_room_for_calls_when_there_are_tools() -> None:
    grammar = grammars.compile(Constraint("json_object"), (replies.NOW,), TOKENIZER)
    for says in ('{"a": 1}', replies.call("now")):
        assert follows(grammar, says), says
    assert not follows(grammar, "Hello")


@case("H1", "H3", "H4", "H6")
def test_every_shape_of_an_assistant_message_renders_the_same_prompt() -> None:
    function = {"name": "find", "arguments": {"glob": "*.py"}}
    as_text = {**function, "arguments": json.dumps(function["arguments"])}
    answer = {"role": "tool", "tool_call_id": "1", "content": "x"}

    def prompt(*turns: dict[str, Any]) -> str:
        return TEMPLATE.render(messages_of({"role": "user", "content": "find"}, *turns, answer), replies.TOOLS).text

    base = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    texts = [{"id": "1", "type": "function", "function": as_text}]
    shapes = [base, {**base, "content": None}, {**base, "content": ""}, {**base, "tool_calls": texts}]
    assert len({prompt(shape) for shape in shapes}) == 1
    assert "None" not in prompt(base)
    parts = [{"type": "text", "text": "fi"}, {"type": "text", "text": "nd"}]
    rendered = TEMPLATE.render(messages_of({"role": "user", "content": parts}), ())
    assert rendered == TEMPLATE.render(messages_of({"role": "user", "content": "find"}), ())


@case("H2")
@pytest.mark.parametrize("arguments", ["no json", "[1]", '"x"', "", "{", "null"])
def test_arguments_that_are_no_object_are_refused_with_the_message_index(arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    with pytest.raises(Failure) as caught:
        messages_of({"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]})
    assert (caught.value.status, caught.value.param) == (400, "messages[1].tool_calls[0].function.arguments")


@case("H7")
def test_an_image_part_is_refused() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(Failure) as caught:
        messages_of({"role": "user", "content": [{"type": "text", "text": "see"}, image]})
    assert caught.value.status == 400
    assert (caught.value.param or "").startswith("messages[0].content")


@case("H8")
def test_a_late_system_message_is_a_400_with_its_index() -> None:
    for first, index in ((Message("user", "a"), 1), (Message("system", "a"), 1)):
        with pytest.raises(Failure) as caught:
            TEMPLATE.render((first, Message("system", "b"), Message("user", "c")), ())
        assert (caught.value.status, caught.value.param) == (400, f"messages[{index}]")


@case("H10")
def test_a_reasoning_effort_is_refused_by_name() -> None:
    with pytest.raises(Failure) as caught:
        messages_of({"role": "user", "content": "x"}, reasoning_effort="high")
    assert (caught.value.status, caught.value.param) == (400, "reasoning_effort")


@case("H11")
def test_results_in_a_row_share_one_user_turn() -> None:
    calls = tuple(ToolCall(str(n), "find", {"glob": str(n)}) for n in range(3))
    answers = tuple(Message("tool", f"r{n}", tool_call_id=str(n)) for n in range(3))
    text = TEMPLATE.render((Message("user", "x"), Message("assistant", "", calls), *answers), replies.TOOLS).text
    block = "".join(f"\n<tool_response>\nr{n}\n</tool_response>" for n in range(3))
    assert f"<|im_start|>user{block}<|im_end|>\n" in text
    assert text.count("<|im_start|>user") == 2


@case("H13")
def test_white_space_and_unicode_inside_a_users_text_stay() -> None:
    says = "a  b\n\n\tc\u00a0d 🚀 e\u0301 ﬁ\r\n x"
    rendered = TEMPLATE.render((Message("user", says),), ())
    assert f"user\n{says}<|im_end|>" in rendered.text
    assert unicodedata.normalize("NFC", says).encode() in b"".join(map(TOKENIZER.token_bytes, rendered.tokens))


@case("H14")
def test_a_developer_message_is_a_system_message() -> None:
    as_developer, as_system = (
        messages_of({"role": role, "content": "Be brief."}, {"role": "user", "content": "x"})
        for role in ("developer", "system")
    )
    assert TEMPLATE.render(as_developer, ()) == TEMPLATE.render(as_system, ())


def messages_of(*messages: dict[str, Any], **fields: Any) -> tuple[Message, ...]:
    """What a chat body's messages become."""
    raw = {"model": "chat", "messages": list(messages), **fields}
    return chat_request(validate(ChatBody, raw), raw, id="r", key="", defaults=Settings()).messages


def follows(grammar: grammars.Grammar, says: str) -> bool:
    """May a reply be this text, and end after it?"""
    matcher = grammar.start()
    for token in TOKENIZER.encode_template(says):
        if not matcher.mask()[token]:
            return False
        matcher.accept(token)
    return all(bool(matcher.mask()[token]) for token in TOKENIZER.stop_tokens)
