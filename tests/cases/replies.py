"""Replies of a model and what a client must see of them. Each is tried at every split point, and over a socket."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from carousel_server.turn import Tool

STRING: dict[str, Any] = {"type": "string"}


def tool(name: str, *, defs: Mapping[str, Any] | None = None, **properties: Any) -> Tool:
    """A declared tool; `_` ends a property's name that Python does not take."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {key.rstrip("_"): value for key, value in properties.items()},
    }
    if defs:
        schema["$defs"] = dict(defs)
    return Tool(name, {"type": "function", "function": {"name": name, "parameters": schema}})


FIND = tool("find", glob=STRING)
BASH = tool("bash", command=STRING, timeout={"type": "integer"})
WRITE = tool("write", content=STRING, path=STRING)
NOW = tool("now")
TOOLS = (FIND, BASH, WRITE, NOW)


def call(name: str, **values: str) -> str:
    """A call in the template's form; a value stands between its framing newlines."""
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


@dataclass(frozen=True)
class Reply:
    """A reply and what it must become; `calls` are (name, arguments)."""

    number: str
    says: str | bytes
    content: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    tools: tuple[Tool, ...] = TOOLS
    stop: tuple[str, ...] = ()
    then: Literal["stop", "length"] = "stop"
    finish: str = ""
    parse: bool = True
    note: str = field(default="", compare=False)

    @property
    def id(self) -> str:
        return f"{self.number} {self.note}".strip()

    @property
    def data(self) -> bytes:
        return self.says if isinstance(self.says, bytes) else self.says.encode()

    @property
    def expected_finish(self) -> str:
        return self.finish or (self.then if self.then == "length" else "tool_calls" if self.calls else "stop")


def text(number: str, says: str, *, note: str = "", **more: Any) -> Reply:
    """A reply that stays text, byte for byte."""
    return Reply(number, says, content=says, note=note, **more)


def value(number: str, schema: Any, written: str, expected: Any, *, note: str = "", defs: Any = None) -> Reply:
    """A call with one value of one schema."""
    declared = tool("f", v=schema, defs=defs)
    return Reply(number, call("f", v=written), "", (("f", {"v": expected}),), (declared,), note=note)


FENCED = "Write it so:\n```xml\n" + call("bash", command="ls -la") + "\n```\n"
HEREDOC = "cat > x.py <<'EOF'\npat = r'<parameter=edits>\\n(.*?)\\n</parameter>'\nEOF"
INNER = "An example:\n" + call("find", glob="*.md") + "\nThat is all."
PROSE_CALL = "<function=find>\n<parameter=glob>\n*.py\n</parameter>\n</function>\n</tool_call>"

FINDING = [
    Reply("A1", "I'll look.\n" + PROSE_CALL, "I'll look.", (("find", {"glob": "*.py"}),)),
    Reply("A1", PROSE_CALL.removesuffix("\n</tool_call>"), "", (("find", {"glob": "*.py"}),), note="and no closer"),
    text("A2", "Use <function=demo> like this."),
    text("A2", "Use <function=find> like this.", note="declared, but in prose"),
    text("A2", PROSE_CALL.replace("find", "demo"), note="a whole block"),
    Reply("A4", call("now"), "", (("now", {}),)),
    text("A4", "a <tool_ and <tool_call and <function", note="never completed"),
    text("A6", FENCED),
    Reply("A6", FENCED + "\n" + call("now"), FENCED.rstrip(), (("now", {}),), note="then a real call"),
    text("A6", FENCED.removesuffix("```\n") + call("now"), note="never closed"),
    text("A6", "1. so:\n   ~~~\n   " + call("now") + "\n   ~~~", note="in a list"),
    text("A6", FENCED.replace("bash", "example_function_name"), note="undeclared name"),
    text("A6", "Inline: `" + call("now") + "`", note="in a code span"),
    text("A6", "````\n```\n" + call("now") + "\n```\n````", note="a fence inside a longer fence"),
    text("A8", call("finds", glob="*.py")),
    text("A8", call("2+2"), note="an absurd name"),
    Reply(
        "A8", call("fin", glob="x") + "\n" + call("now"), call("fin", glob="x"), (("now", {}),), note="then a real one"
    ),
    text("A9", "Hm.\n" + call("find", glob="*.py"), tools=()),
    text("A10", "Hm.\n" + call("find", glob="*.py"), parse=False),
    text("A11", '<tool_call>\n{"name": "find", "arguments": {"glob": "*"}}\n</tool_call>'),
    text("A11", '<function=find>\n{"glob": "*"}\n</function>', note="inside the function mark"),
    Reply("A12", call("now") + "\nNow I wait.", "", (("now", {}),)),
    Reply(
        "A12",
        call("now") + "\nand\n" + call("find", glob="x"),
        "",
        (("now", {}), ("find", {"glob": "x"})),
        note="between calls",
    ),
    Reply(
        "A12", call("now") + call("finds"), call("finds"), (("now", {}),), note="a block that is no call is not lost"
    ),
]
ENDS = [
    Reply("B1", call("write", content='print("</tool_call>")'), "", (("write", {"content": 'print("</tool_call>")'}),)),
    Reply(
        "B1",
        call("write", content="</tool_call>\n</tool_call>", path="x"),
        "",
        (("write", {"content": "</tool_call>\n</tool_call>", "path": "x"}),),
        note="on lines of their own",
    ),
    Reply(
        "B2",
        call("write", content="close it with </parameter> please"),
        "",
        (("write", {"content": "close it with </parameter> please"}),),
    ),
    Reply(
        "B2",
        call("write", content="a\n</parameter>\nb", path="p"),
        "",
        (("write", {"content": "a\n</parameter>\nb", "path": "p"}),),
        note="on its own line",
    ),
    Reply("B3", call("bash", command=HEREDOC), "", (("bash", {"command": HEREDOC}),)),
    Reply(
        "B3",
        call("bash", command="<parameter=edits>\n1\n</parameter>\n", timeout="5"),
        "",
        (("bash", {"command": "<parameter=edits>\n1\n</parameter>\n", "timeout": 5}),),
        note="over lines, another value behind",
    ),
    Reply(
        "B3",
        call("write", content="mention <parameter=x> alone", path="p"),
        "",
        (("write", {"content": "mention <parameter=x> alone", "path": "p"}),),
        note="half a pair",
    ),
    Reply(
        "B5",
        "<tool_call>\n<function=bash>\n<parameter=timeout>\n1\n</function>\n</tool_call>",
        "",
        (("bash", {"timeout": 1}),),
    ),
    Reply(
        "B5", "<function=find>\n<parameter=glob>\n1\n</function>", "", (("find", {"glob": "1"}),), note="nothing behind"
    ),
    Reply("B5", "<function=find><parameter=glob>1</function>", "", (("find", {"glob": "1"}),), note="on one line"),
    text("B5", "<tool_call>\n<function=find>\n<parameter=glob>\n1", note="neither end"),
    text(
        "B5",
        "<tool_call>\n<function=find>\n<parameter=glob>\n1\n</parameter>\n</tool_call>",
        note="no end of the function",
    ),
    text(
        "B5",
        call("write", content="<x>\n</function>\n<y>").removesuffix("\n</parameter>\n</function>\n</tool_call>"),
        note="an end mark in an unfinished file",
    ),
    Reply(
        "B5",
        "<function=find>\n<parameter=glob>\n1\n</parameter>\n" + call("now"),
        "",
        (("find", {"glob": "1"}), ("now", {})),
        note="the next function ends it",
    ),
    Reply(
        "B5",
        "<function=bash>\n<parameter=command>\nx='<parameter=y>1</parameter>' z\n</function>\n</tool_call>",
        "",
        (("bash", {"command": "x='<parameter=y>1</parameter>' z"}),),
        note="with a pair inside",
    ),
    Reply(
        "B6",
        "<function=write>\n<parameter=path>\n1\n<parameter=content>\n2\n</parameter>\n</function>",
        "",
        (("write", {"path": "1", "content": "2"}),),
    ),
    Reply(
        "B6",
        "<function=write><parameter=path>1<parameter=content>2</parameter></function>",
        "",
        (("write", {"path": "1", "content": "2"}),),
        note="on one line",
    ),
    Reply("B8", "<function=find>\n<parameter=glob=>hello</parameter>\n</function>", "", (("find", {"glob": "hello"}),)),
    Reply("B9", "<function=find\n<parameter=glob>\nx\n</parameter>\n</function>", "", (("find", {"glob": "x"}),)),
    text("B9", "<function=demo\n<parameter=glob>\nx\n</parameter>\n</function>", note="undeclared"),
    *[
        Reply(
            "B11b",
            f"<function=find>\n<parameter=glob>\nOslo\n{mark}\n</function>\n</tool_call>",
            "",
            (("find", {"glob": "Oslo"}),),
            note=mark,
        )
        for mark in ("</parameter/>", "</parameter1>", "</parameter", "</parameterfunction>")
    ],
    Reply(
        "B11b",
        "<function=find>\n<parameter=glob>\nOslo\n</parameterfunction>\n</tool_call>",
        "",
        (("find", {"glob": "Oslo"}),),
        note="both marks in one",
    ),
    Reply("B11c", call("write", content=INNER, path="a.md"), "", (("write", {"content": INNER, "path": "a.md"}),)),
    Reply(
        "B11c",
        call("write", content=INNER) + "\n" + call("now"),
        "",
        (("write", {"content": INNER}), ("now", {})),
        note="a call behind",
    ),
    text(
        "B11c",
        call("write", content=INNER).removesuffix("\n</parameter>\n</function>\n</tool_call>"),
        then="length",
        note="unfinished",
    ),
    text("B11c", call("writes", content=INNER), note="undeclared outside"),
    Reply(
        "B11c",
        call("write", content=call("write", path="inner"), path="outer"),
        "",
        (("write", {"content": call("write", path="inner"), "path": "outer"}),),
        note="with a key of the outer call",
    ),
    Reply(
        "B12", call("write", content="a &lt; b &amp;&amp; c"), "", (("write", {"content": "a &lt; b &amp;&amp; c"}),)
    ),
]
SPACE = [
    Reply(
        "C1",
        "<function=write>\n<parameter=content>\n    if x:\n        return 1\n\n</parameter>\n</function>",
        "",
        (("write", {"content": "    if x:\n        return 1\n"}),),
    ),
    Reply("C2", call("write", content="\nx"), "", (("write", {"content": "\nx"}),)),
    Reply("C5", call("write", content="a\r\nb"), "", (("write", {"content": "a\r\nb"}),)),
    Reply("C6", call("write", content=""), "", (("write", {"content": ""}),)),
    Reply(
        "C6",
        "<function=write>\n<parameter=content></parameter>\n</function>",
        "",
        (("write", {"content": ""}),),
        note="no newline",
    ),
    Reply("C6", call("bash", timeout=""), "", (("bash", {}),), note="no string"),
    Reply(
        "C7",
        "<tool_call>\n\n<function=find>\n\n\t<parameter=glob>\nx\n</parameter>\n\n </function>\n\n</tool_call>",
        "",
        (("find", {"glob": "x"}),),
    ),
    Reply(
        "C7",
        "<tool_call><function=find><parameter=glob>x</parameter></function></tool_call>",
        "",
        (("find", {"glob": "x"}),),
        note="none at all",
    ),
    Reply(
        "C7",
        call("write", content="only one side").replace("side\n", "side"),
        "",
        (("write", {"content": "only one side"}),),
        note="a newline on one side",
    ),
    Reply(
        "C7",
        "<function=write>\n<parameter=content>x\n</parameter>\n</function>",
        "",
        (("write", {"content": "x\n"}),),
        note="only behind",
    ),
    Reply(
        "C7",
        "<function=write>\n  <parameter=path>\n1\n  <parameter=content>\n2\n</parameter>\n</function>",
        "",
        (("write", {"path": "1", "content": "2"}),),
        note="an indented mark ends a value",
    ),
]
TYPES = [
    value("D1", STRING, "03106", "03106"),
    value("D2", STRING, "1.000001", "1.000001"),
    value("D3", {"type": "integer"}, "5", 5),
    value("D3", {"type": "number"}, "2.5", 2.5, note="number"),
    value("D4", {"type": "integer"}, "2026-01-15", "2026-01-15"),
    value("D6", {"type": ["boolean", "null"]}, "false", False),
    value("D6", {"type": ["boolean", "null"]}, "null", None, note="null"),
    value("D8", {"anyOf": [{"type": "array", "items": STRING}, {"type": "null"}]}, '["a", "b"]', ["a", "b"]),
    value("D9", {"$ref": "#/$defs/P"}, '{"a": 1}', {"a": 1}, defs={"P": {"type": "object"}}),
    value("D11", {}, '{"a": 1}', {"a": 1}),
    value("D11", {}, "12", "12", note="a number stays text"),
    value("D12", {"type": "boolean"}, "True", True),
    value("D14", {"type": "integer"}, "1e5", "1e5"),
    value("D15", {"type": "integer"}, "123456789012345678901234567890", 123456789012345678901234567890),
    value("D17", STRING, '{"a": 1}', '{"a": 1}'),
    value("D4", {"type": "object"}, '{"a": NaN}', '{"a": NaN}', note="NaN is not JSON"),
    value("D4", {"type": "number"}, "1e999", "1e999", note="beyond the range of JSON"),
    value("D11", {"enum": ["a", 3]}, "3", 3, note="a listed number"),
    value("D6", {"type": "string", "nullable": True}, "null", None, note="nullable"),
]
SEVERAL = [
    Reply("E1", call("now") + "\n" + call("find", glob="x"), "", (("now", {}), ("find", {"glob": "x"}))),
    Reply(
        "E2", call("find", glob="a") + call("find", glob="b"), "", (("find", {"glob": "a"}), ("find", {"glob": "b"}))
    ),
    Reply("E3", "<function=now>\n</function>", "", (("now", {}),)),
    Reply("E4", call("write", content="V", path="p"), "", (("write", {"content": "V", "path": "p"}),)),
    text("E5", call("write", content="half a fi")[:-35], then="length"),
    Reply("E5", "Hm.\n" + call("now"), "Hm.", (("now", {}),), then="length", note="a call that was closed is kept"),
    Reply(
        "E5",
        call("now") + "\n" + call("write", content="half")[:-40],
        call("write", content="half")[:-40],
        (("now", {}),),
        then="length",
        note="the second is cut",
    ),
    Reply("E7", call("now"), "", (("now", {}),)),
    Reply("E8", "Let me see.\n\n" + call("now"), "Let me see.", (("now", {}),)),
    Reply(
        "E8",
        "Hm.\n\n" + call("now") + call("finds"),
        "Hm." + call("finds"),
        (("now", {}),),
        note="and a block behind the call",
    ),
    text("E8", "Let me see.\n\n", note="no call behind"),
    text("E8", "Let me see.\n\n<tool_call>\n<function=nobody>", note="no declared call behind"),
    Reply("E11", "<think>\nhm " + call("now"), "<think>\nhm", (("now", {}),)),
    Reply(
        "E11",
        call("write", content="a </think> b"),
        "",
        (("write", {"content": "a </think> b"}),),
        note="inside the value",
    ),
]
RUNES = [
    text("F1", "🚀 and 👩‍🚀"),
    text("F2", "ďábel"),
    Reply("F3", b"so \xf0\x9f", "so \ufffd", then="length"),
    Reply("F3", b"a\xffb\xe2\x82", "a\ufffdb\ufffd", note="and a byte that is none"),
    text("F6", " Hello world"),
    Reply("F7", bytes(range(256)), bytes(range(256)).decode(errors="replace")),
    Reply("F8", call("write", content="→ 🚀"), "", (("write", {"content": "→ 🚀"}),)),
]
STOPS = [
    Reply("G1", "The quick brown fox", "The quick br", stop=("own fox",)),
    Reply("G2", "done\nUser: hi", "done", stop=("\nUser:",)),
    Reply("G3", "alpha beta gamma delta", "alpha ", stop=("beta gamma",)),
    text("G5", "ends with <|im_e", stop=("<|im_end|>",)),
    text("G5", "a\n<tool_ca", stop=("ca!",), note="both stages hold"),
    Reply("G5c", "text<|im_end|>more", "text", stop=("<|im_end|>",)),
    Reply("G5c", "text\n<tool_call>more", "text\n", stop=("<tool_call>",), note="a stop that is a mark"),
    Reply("G8", "ababac, then abac", "ab", stop=("abac",)),
    Reply("G8", "xabcd", "xa", stop=("abcd", "bc"), note="the one complete first"),
    Reply("G8", "xabc", "x", stop=("bc", "abc"), note="of two at once the longest"),
    Reply("G8", "never mentioned", "never mentioned", stop=("§",), note="no match"),
    Reply(
        "G8",
        call("write", content="STOP it"),
        call("write", content="STOP it").split("STOP")[0],
        stop=("STOP",),
        note="inside a value",
    ),
]
REPLIES = [*FINDING, *ENDS, *SPACE, *TYPES, *SEVERAL, *RUNES, *STOPS]
