"""Grammars: what they let through, what they refuse, and how they are kept."""

import json
import random
import threading
from pathlib import Path
from typing import Any

import carousel_server
import pytest
import torch
from carousel_server import grammar as grammars
from carousel_server.failure import Failure
from carousel_server.grammar import Grammar, GrammarCompiler
from carousel_server.tokenizer import Tokenizer
from carousel_server.tool_call import CallParser
from carousel_server.turn import Constraint, Tool

TOKENIZER = Tokenizer.load(Path(carousel_server.__file__).parent / "embedded")
COMPILER = GrammarCompiler(TOKENIZER)
ROW: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def tool(name: str, required: tuple[str, ...] = (), **properties: Any) -> Tool:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "$defs": {"N": {"type": "number"}},
    }
    return Tool(name, {"type": "function", "function": {"name": name, "parameters": schema}})


SET = tool(
    "set",
    ("text", "count"),
    text={"type": "string"},
    count={"type": "integer"},
    mode={"enum": ["fast", "slow", 3]},
    ratio={"$ref": "#/$defs/N"},
    tags={"type": "array", "items": {"type": "string"}},
)
NOW = tool("now")


def allows(grammar: Grammar, text: str) -> bool:
    """May a reply be exactly this text?"""
    matcher = grammar.start()
    for token in TOKENIZER.encode_template(text):
        if not matcher.mask()[token]:
            return False
        matcher.accept(token)
    mask = matcher.mask()
    return all(bool(mask[token]) for token in TOKENIZER.stop_tokens)


def sampled(grammar: Grammar, seed: int, most: int = 400) -> str | None:
    """A random reply that the masks allow, ending as soon as it may; None when it is still not over."""
    rng = random.Random(seed)
    matcher = grammar.start()
    out = b""
    for _ in range(most):
        allowed = torch.nonzero(matcher.mask()).flatten().tolist()
        ends = [token for token in allowed if token in TOKENIZER.stop_tokens]
        if ends:
            matcher.accept(ends[0])
            assert matcher.finished
            return out.decode()
        token = rng.choice(allowed)
        matcher.accept(token)
        out += TOKENIZER.token_bytes(token)
    return None


def call(*values: tuple[str, str], name: str = "set") -> str:
    body = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("says", "fits"),
    [
        (call(("text", "a\n\nb <b> \\ 🚀"), ("count", "5")), True),
        (call(("text", ""), ("count", "-5")), True),
        (call(("text", "x"), ("count", "5"), ("mode", "fast")), True),
        (call(("text", "x"), ("count", "5"), ("mode", "3"), ("ratio", "0.5"), ("tags", '["a", "b"]')), True),
        (call(("text", "x"), ("count", "5")) + "\n" + call(name="now"), True),
        (call(("text", "x"), ("count", "5.5")), False),
        (call(("text", "x"), ("count", '"5"')), False),
        (call(("text", "x"), ("count", "5"), ("mode", "other")), False),
        (call(("text", "x"), ("count", "5"), ("tags", "[1]")), False),
        (call(("text", "x")), False),
        (call(("count", "5"), ("text", "x")), False),
        (call(("text", "x"), ("count", "5"), ("more", "5")), False),
        (call(("text", "a </parameter> b"), ("count", "5")), False),
        (call(name="then"), False),
        ("I call now. " + call(name="now"), False),
        ("", False),
    ],
)
def test_a_required_call_has_every_required_value_in_its_type(says: str, fits: bool) -> None:
    grammar = COMPILER.compile(Constraint("call"), (SET, NOW))
    assert allows(grammar, says) is fits


def test_a_named_call_is_exactly_one_of_that_tool() -> None:
    grammar = COMPILER.compile(Constraint("call", name="now"), (SET, NOW))
    assert allows(grammar, call(name="now"))
    assert not allows(grammar, call(name="now") + "\n" + call(name="now"))
    assert not allows(grammar, call(("text", "x"), ("count", "5")))


def test_without_parallel_calls_one_is_all() -> None:
    grammar = COMPILER.compile(Constraint("call"), (NOW,), parallel=False)
    assert allows(grammar, call(name="now"))
    assert not allows(grammar, call(name="now") + "\n" + call(name="now"))


STRICT = Tool("set", {"function": {**SET.definition["function"], "strict": True}})
GOOD, BAD = call(("text", "x"), ("count", "5")), call(("text", "x"), ("count", "5.5"))


@pytest.mark.parametrize(
    ("says", "fits"),
    [
        ("", True),
        ("I only talk: a < b, <tool_call, </function>.", True),
        (GOOD, True),
        ("I look.\n\n" + GOOD, True),
        (GOOD + "\n" + call(("x", "1"), name="now") + "\n" + GOOD, True),
        (call(("x", "any\n<parameter=y>"), name="now"), True),
        (BAD, False),
        ("I look. " + BAD, False),
        (GOOD + "\n" + BAD, False),
        (GOOD + "\nand more", False),
        (call(name="then"), False),
        ("I look. <function=set>", False),
        ("I look. " + GOOD[:-20], False),
        (call(name="now")[: -len("</tool_call>")], False),
    ],
)
def test_beside_free_text_a_strict_tool_is_called_by_its_schema_or_not_at_all(says: str, fits: bool) -> None:
    assert allows(COMPILER.compile(Constraint("call", optional=True), (STRICT, NOW)), says) is fits


def test_without_parallel_calls_free_text_is_followed_by_one() -> None:
    grammar = COMPILER.compile(Constraint("call", optional=True), (STRICT, NOW), parallel=False)
    assert allows(grammar, "Now. " + GOOD)
    assert not allows(grammar, "Now. " + GOOD + "\n" + GOOD)


def test_the_mark_of_a_call_cannot_be_spelt_in_free_text() -> None:
    matcher = COMPILER.compile(Constraint("call", optional=True), (STRICT,)).start()
    for token in TOKENIZER.encode("See <tool_call"):
        matcher.accept(token)
    assert not matcher.mask()[TOKENIZER.encode(">")[0]]


def test_only_strict_tools_need_a_schema_that_can_be_enforced() -> None:
    loose = tool("loose", v={"type": "objekt"})
    optional = Constraint("call", optional=True)
    COMPILER.compile(optional, (STRICT, loose))
    with pytest.raises(Failure) as caught:
        COMPILER.compile(optional, (NOW, Tool("t", {"function": {**loose.definition["function"], "strict": True}})))
    assert caught.value.param == "tools[1].function.parameters"


def test_the_tool_mark_is_the_control_token() -> None:
    mask = COMPILER.compile(Constraint("call"), (NOW,)).start().mask()
    assert torch.nonzero(mask).flatten().tolist() == [TOKENIZER.control_tokens["<tool_call>"]]


def test_whatever_a_call_grammar_lets_through_is_parsed_as_that_call() -> None:
    typed = tool(
        "typed", ("count",), count={"type": "integer"}, mode={"enum": ["a b", 3]}, flags={"items": {"type": "boolean"}}
    )
    grammar = COMPILER.compile(Constraint("call"), (typed,), parallel=False)
    replies = [says for seed in range(20) if (says := sampled(grammar, seed)) is not None]
    assert len(replies) >= 10
    for says in replies:
        parser = CallParser((typed,))
        (parsed,) = parser.feed(says) + parser.close()
        assert not isinstance(parsed, str), says
        assert type(parsed.arguments["count"]) is int
        assert parsed.arguments.get("mode", 3) in ("a b", 3)
        assert all(type(flag) is bool for flag in parsed.arguments.get("flags", []))


def test_whatever_a_schema_lets_through_fits_it() -> None:
    schema = {**ROW, "properties": {**ROW["properties"], "name": {"enum": ["x", "é"]}}}
    grammar = COMPILER.compile(Constraint("json_schema", schema=schema), ())
    replies = [says for seed in range(20) if (says := sampled(grammar, seed)) is not None]
    assert len(replies) >= 10
    for says in replies:
        found = json.loads(says)
        assert set(found) == {"name", "age"}
        assert found["name"] in ("x", "é")
        assert type(found["age"]) is int
        assert found["age"] >= 0


@pytest.mark.parametrize(
    ("says", "fits"),
    [
        ('{"name": "é", "age": 5}', True),
        ('{"name":"x","age":5}', True),
        ('{\n  "name": "x",\n  "age": 5\n}', True),
        ('{"age": 5, "name": "x"}', False),
        ('{"name": "x"}', False),
        ('{"name": "x", "age": 5, "more": 1}', False),
        ('{"name": "x", "age": -5}', False),
        ('{' + "\n" * 40 + '"name": "x", "age": 5}', False),
        ('{"name": "x", "age": 5} and', False),
        ('["name"]', False),
    ],
)  # fmt: skip
def test_a_json_schema_is_enforced(says: str, fits: bool) -> None:
    assert allows(COMPILER.compile(Constraint("json_schema", schema=ROW), ()), says) is fits


def test_json_object_is_any_object_and_nothing_else() -> None:
    grammar = COMPILER.compile(Constraint("json_object"), ())
    assert allows(grammar, '{"a": [1, {"b": null}]}')
    assert allows(grammar, "{}")
    assert not any(allows(grammar, says) for says in ("[1]", '"a"', "5", "Sure: {}", ""))


def test_a_finished_grammar_leaves_only_the_end_tokens() -> None:
    matcher = COMPILER.compile(Constraint("json_object"), ()).start()
    for token in TOKENIZER.encode("{}"):
        assert not matcher.finished
        matcher.accept(token)
    assert matcher.finished
    assert set(torch.nonzero(matcher.mask()).flatten().tolist()) == TOKENIZER.stop_tokens
    matcher.accept(min(TOKENIZER.stop_tokens))
    assert matcher.finished


def test_a_mask_covers_the_padded_vocabulary_and_never_allows_padding() -> None:
    mask = COMPILER.compile(Constraint("json_object"), ()).start().mask()
    assert mask.shape == (TOKENIZER.vocab_size,)
    assert mask.dtype == torch.bool
    assert not mask[TOKENIZER.valid_tokens :].any()


def test_a_token_that_the_mask_forbids_fails_the_generation() -> None:
    matcher = COMPILER.compile(Constraint("json_object"), ()).start()
    with pytest.raises(Failure) as caught:
        matcher.accept(TOKENIZER.encode("x")[0])
    assert caught.value.code == "generation_failed"


@pytest.mark.parametrize(
    ("schema", "code", "says"),
    [
        ({"not": {"type": "string"}}, "unsupported", 'Unimplemented keys: ["not"]'),
        ({"type": "array", "uniqueItems": True}, "unsupported", "uniqueItems"),
        ({"type": "string", "format": "nonsense"}, "unsupported", "Unknown format: nonsense"),
        ({"type": "string", "pattern": "(?=a)"}, "unsupported", "look-around"),
        ({"$ref": "https://elsewhere/x.json"}, "unsupported", "not present in a registry"),
        ({"type": "objekt"}, "invalid_request", "Invalid type: objekt"),
        ({"type": "string", "pattern": "("}, "invalid_request", "regex parse error"),
        (
            {"type": "array", "minItems": 3, "maxItems": 1},
            "invalid_request",
            "minItems (3) is greater than maxItems (1)",
        ),
        ({"enum": []}, "invalid_request", "Unsatisfiable"),
        ({"$ref": "#/nowhere"}, "invalid_request", "does not exist"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_a_400_with_the_reason(
    schema: dict[str, Any], code: str, says: str
) -> None:
    with pytest.raises(Failure) as caught:
        COMPILER.compile(Constraint("json_schema", schema=schema), ())
    assert (caught.value.status, caught.value.code) == (400, code)
    assert caught.value.param == "response_format.json_schema.schema"
    assert says in caught.value.message
    assert "%json" not in caught.value.message


def test_an_overlapping_one_of_is_refused_with_advice() -> None:
    with pytest.raises(Failure, match=r"oneOf constraints are not supported. Use anyOf\.$"):
        COMPILER.compile(Constraint("json_schema", schema={"oneOf": [{"type": "number"}, {"type": "integer"}]}), ())


def test_keywords_of_a_tool_that_no_grammar_holds_are_advice() -> None:
    loose = tool(
        "loose",
        v={"type": "object", "not": {}, "format": "nonsense", "oneOf": [{"type": "object"}, {"minProperties": 1}]},
    )
    assert allows(COMPILER.compile(Constraint("call"), (loose,)), call(("v", '{"a": 1}'), name="loose"))


def test_a_wrong_schema_of_a_tool_is_refused_with_its_index() -> None:
    for wrong in ({"type": "objekt"}, {"type": "array", "items": {"$ref": "#/nowhere"}}):
        with pytest.raises(Failure) as caught:
            COMPILER.compile(Constraint("call"), (NOW, tool("t", v=wrong)))
        assert (caught.value.status, caught.value.param) == (400, "tools[1].function.parameters")


def test_a_schema_nested_too_deeply_is_a_400() -> None:
    for depth in (300, 5000):
        schema: dict[str, Any] = {"type": "string"}
        for _ in range(depth):
            schema = {"type": "array", "items": schema}
        with pytest.raises(Failure) as caught:
            COMPILER.compile(Constraint("json_schema", schema=schema), ())
        assert caught.value.status == 400


def test_a_call_without_its_tool_or_with_an_impossible_name_is_a_400() -> None:
    for tools, name in (((), None), ((NOW,), "then")):
        with pytest.raises(Failure) as caught:
            COMPILER.compile(Constraint("call", name=name), tools)
        assert (caught.value.status, caught.value.param) == (400, "tool_choice")
    for key in ("a>b", "a\nb", "", "a=", " a"):
        with pytest.raises(Failure, match="cannot be written"):
            COMPILER.compile(Constraint("call"), (tool("t", **{key: {"type": "string"}}),))


def test_grammars_are_kept_within_their_bytes_and_the_least_used_go_first() -> None:
    compiler = GrammarCompiler(TOKENIZER, max_bytes=350_000)
    first = compiler.compile(Constraint("json_object"), ())
    others = [{"type": "object", "properties": {f"k{n}": {"type": "integer"}}} for n in range(4)]
    for schema in others[:2]:
        compiler.compile(Constraint("json_schema", schema=schema), ())
    assert compiler.compile(Constraint("json_object"), ()) is first
    second = compiler.compile(Constraint("json_schema", schema=others[1]), ())
    compiler.compile(Constraint("json_schema", schema=others[2]), ())
    assert compiler.nbytes <= 350_000
    assert compiler.compile(Constraint("json_schema", schema=others[1]), ()) is second
    compiler.compile(Constraint("json_schema", schema=others[3]), ())
    assert compiler.nbytes <= 350_000
    assert compiler.compile(Constraint("json_object"), ()) is not first


def test_a_grammar_serves_many_replies_at_once() -> None:
    grammar = COMPILER.compile(Constraint("json_schema", schema=ROW), ())
    results: list[bool] = []
    says = '{"name": "x", "age": 5}'
    threads = [threading.Thread(target=lambda: results.append(allows(grammar, says))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8


def test_the_module_keeps_one_compiler_for_a_tokenizer() -> None:
    first = grammars.compile(Constraint("json_object"), (), TOKENIZER)
    assert grammars.compile(Constraint("json_object"), (), TOKENIZER) is first
