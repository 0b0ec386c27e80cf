"""A call that the template writes into a prompt is read back as the same call: sessions keep what the model said."""

from pathlib import Path
from typing import Any

import carousel_server
from carousel_server.prompt import PromptTemplate
from carousel_server.tokenizer import Tokenizer
from carousel_server.tool_call import CallParser, ParsedCall
from carousel_server.turn import Message, Tool, ToolCall
from hypothesis import given, settings
from hypothesis import strategies as st

EMBEDDED = Path(carousel_server.__file__).parent / "embedded"
TEMPLATE = PromptTemplate.load(EMBEDDED, Tokenizer.load(EMBEDDED))
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(blacklist_categories=["Cs"]))
    | st.sampled_from(["</tool_call>", "\n", "  x\n", "null", "5"]),
    "integer": st.integers(),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(st.integers() | st.text(st.characters(blacklist_categories=["Cs"]))),
    "object": st.dictionaries(st.text("abc"), st.integers()),
}
TOOL = Tool(
    "keep",
    {"type": "function", "function": {"name": "keep", "parameters": {"properties": {k: {"type": k} for k in KINDS}}}},
)
ARGUMENTS = st.fixed_dictionaries({}, optional=KINDS)


@settings(max_examples=200, deadline=None)
@given(st.lists(ARGUMENTS, min_size=1, max_size=3), st.sampled_from(["", "Let me see."]))
def test_calls_survive_the_template_and_the_parser(calls: list[dict[str, Any]], text: str) -> None:
    said = Message("assistant", text, tuple(ToolCall(f"c{n}", "keep", args) for n, args in enumerate(calls)))
    prompt = TEMPLATE.render((Message("user", "x"), said, Message("user", "y")), (TOOL,)).text
    start = prompt.rindex("</think>\n\n", 0, prompt.rindex("</think>\n\n")) + len("</think>\n\n")
    reply = prompt[start : prompt.rindex("<|im_end|>\n<|im_start|>user\ny")]
    parser = CallParser((TOOL,))
    parts = parser.feed(reply) + parser.close()
    assert "".join(part for part in parts if isinstance(part, str)) == text
    assert [dict(part.arguments) for part in parts if isinstance(part, ParsedCall)] == calls
