"""Conversations for the template: as messages of the core, and in the shape that transformers takes."""

from typing import Any

from carousel_server.turn import Message, Tool, ToolCall

S, U, A = (lambda text, role=role: Message(role, text) for role in ("system", "user", "assistant"))


def calling(text: str, *calls: tuple[str, dict[str, Any]]) -> Message:
    return Message("assistant", text, tuple(ToolCall(f"c{n}", name, args) for n, (name, args) in enumerate(calls)))


def result(text: str, n: int = 0) -> Message:
    return Message("tool", text, tool_call_id=f"c{n}")


def tool(name: str, **schema: Any) -> Tool:
    return Tool(name, {"type": "function", "function": {"name": name, **schema}})


LOOK = tool(
    "look",
    description='Looks things up: <b>really</b> & "quoted".',
    parameters={"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
)
BARE = tool("bare")
DEEP = tool(
    "déep",
    parameters={
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/X"}},
        "$defs": {"X": {"enum": [1, 2.5, None, True, "ß\u2028"]}},
    },
)
ALL = (LOOK, BARE, DEEP)

CONVERSATIONS: dict[str, tuple[tuple[Message, ...], tuple[Tool, ...]]] = {
    "one question": ((U("Hello"),), ()),
    "system and question": ((S("Be brief."), U("Hello")), ()),
    "empty system": ((S(""), U("Hello")), ()),
    "empty question": ((U(""),), ()),
    "white space is trimmed at the ends only": (
        (
            S("  a  b\n"),
            U("\n\n  x\n\n y \t\n"),
        ),
        (),
    ),
    "two turns": ((U("Hi"), A("Hello."), U("And now?")), ()),
    "system and two turns": ((S("Be brief."), U("Hi"), A("Hello."), U("And now?")), ()),
    "ends with an assistant turn": ((U("Hi"), A("Hello.")), ()),
    "two user messages in a row": ((U("a"), U("b")), ()),
    "two assistant messages in a row": ((U("a"), A("b"), A("c"), U("d")), ()),
    "an empty answer": ((U("a"), A(""), U("b")), ()),
    "unicode": ((U("naïve ﬁ 漢字 🚀👩‍🚀 ا \u200d\u00a0."),), ()),
    "composed and decomposed letters": ((U("e\u0301 \u00e9 \u1e9b\u0323"),), ()),
    "carriage returns and tabs": ((U("a\r\nb\tc\rd"),), ()),
    "markup that is no control token": ((U("<b>x</b> <|im> |im_end|> < tool_call >"), A("</x>"), U("&lt;")), ()),
    "template syntax": ((U("{{ 7 * 7 }} {% raw %} {# x #}"),), ()),
    "numbers and code": ((U("def f(x):\n    return x ** 2  # 12345.678\n"),), ()),
    "tools": ((U("Look."),), ALL),
    "tools and system": ((S("Be brief."), U("Look.")), ALL),
    "one bare tool": ((U("Look."),), (BARE,)),
    "a call and its result": ((U("q"), calling("", ("look", {"q": "x"})), result("found")), ALL),
    "a call with text": (
        (U("q"), calling("I look.", ("look", {"q": "x"})), result("found"), A("It is x."), U("thanks")),
        ALL,
    ),
    "two calls and two results": (
        (U("q"), calling("", ("look", {"q": "x"}), ("look", {"q": "y"})), result("1"), result("2", 1), A("1 and 2.")),
        ALL,
    ),
    "two calls with text": (
        (U("q"), calling("Both.", ("bare", {}), ("look", {"q": "y"})), result("1"), result("2", 1)),
        ALL,
    ),
    "values of every type": (
        (
            U("q"),
            calling(
                "", ("look", {"s": "a\n b", "i": 5, "f": 0.5, "n": None, "b": True, "l": [1, "é"], "o": {"k": []}})
            ),
        ),
        ALL,
    ),
    "an empty result": ((U("q"), calling("", ("bare", {})), result("")), ALL),
    "a result of many lines": ((U("q"), calling("", ("bare", {})), result('a\n\n  b\n{"json": 1}\n')), ALL),
    "results in two groups": (
        (U("q"), calling("", ("bare", {})), result("1"), calling("", ("bare", {})), result("2"), A("done"), U("more")),
        ALL,
    ),
    "calls in history but no tools now": ((U("q"), calling("", ("bare", {})), result("1"), U("r")), ()),
    "a long conversation": (
        (S("s"), *(m for n in range(20) for m in (U(f"question {n}"), A(f"answer {n}."))), U("end")),
        ALL,
    ),
}


def for_transformers(message: Message) -> dict[str, Any]:
    """The message as a client of transformers writes it."""
    shape: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shape["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.tool_calls
        ]
    return shape
