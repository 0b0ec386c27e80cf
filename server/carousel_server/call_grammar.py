"""Tools to a grammar (in llguidance's Lark dialect) of the XML calls that the chat template teaches. Pure text.

Required parameters come in the declared order, optional ones may be left out. A string value is raw text that holds
none of the call's own marks, so the parser reads back exactly what the grammar meant; every other value is JSON as the
template prints it. Keywords of a tool's schema that a grammar cannot hold (`pattern` of a raw string, `not`, ...) are
advice to the model, as they are without a grammar.

Where text may stand before a call, it holds no mark that opens one, so the mark's control token is where a call begins.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from carousel_server.call_body import CALL, END_CALL, END_TOOL, PARAMETER, TOOL
from carousel_server.failure import Failure
from carousel_server.tool_value import enumerated, properties, types
from carousel_server.turn import Tool

_RAW = r"/(?s:.*)/ & ~/(?s:.*)<\/?(parameter|function)(?s:.*)/"
_TEXT = r"/(?s:.+)/ & ~/(?s:.*)<(tool_call>|function=)(?s:.*)/"
_REST = r"/(?s:.*)/ & ~/(?s:.*)<\/tool_call>(?s:.*)/"
_AS_TEMPLATE_PRINTS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": True,
    "coerce_one_of": True,
}


def call_rules(tools: Sequence[Tool], control_tokens: Mapping[str, int], *, parallel: bool, optional: bool) -> str:
    """Rules whose head is `calls`: one call, or with `parallel` one or more, one a line.

    With `optional` there is also TEXT, for what stands before a call, and a tool that is not strict may be called with
    anything.
    Raises Failure `unsupported` for a parameter whose name cannot stand between the marks.
    """
    rules = [f"calls: call{' (NEWLINE call)*' if parallel else ''}", 'NEWLINE: "\\n"', f"RAW: {_RAW}"]
    rules += [f"TEXT: {_TEXT}", f"REST: {_REST}"] if optional else []
    rules.append("call: " + " | ".join(f"call_{n}" for n in range(len(tools))))
    opener, closer = (_control(mark, control_tokens) for mark in (TOOL, END_TOOL))
    for n, tool in enumerate(tools):
        head, parts = _text(f"\n{CALL}{tool.name}>\n"), []
        if optional and not tool.strict:
            rules.append(f"call_{n}: {opener} {head} REST {closer}")
            continue
        for i, (key, schema, required) in enumerate(_parameters(tool)):
            parts.append(f"parameter_{n}_{i}" + ("" if required else "?"))
            rules += _parameter_rules(f"{n}_{i}", key, schema, tool)
        rules.append(f"call_{n}: {opener} {' '.join([head, *parts, _text(END_CALL + chr(10))])} {closer}")
    return "\n".join(rules)


def _parameters(tool: Tool) -> Iterator[tuple[str, Any, bool]]:
    schema = tool.parameters
    names = schema.get("required")
    required = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    declared = properties(schema, schema)
    for key in [*declared, *(key for key in required if key not in declared)]:
        if not key or set(key) & set("<>\n") or key != key.strip().rstrip("="):
            message = f"Parameter {key!r} of tool {tool.name!r} cannot be written in a call; rename it."
            raise Failure("unsupported", message, param="tools")
        yield key, declared.get(key, {}), key in required


def _parameter_rules(name: str, key: str, schema: Any, tool: Tool) -> list[str]:
    head, tail = f"{PARAMETER}{key}>\n", "\n</parameter>\n"
    root = tool.parameters
    allowed = types(schema, root)
    if members := enumerated(schema):
        texts = (member if isinstance(member, str) else json.dumps(member, ensure_ascii=False) for member in members)
        choice = " | ".join(map(_text, texts))
        return [f"parameter_{name}: {_text(head)} ({choice}) {_text(tail)}"]
    if allowed is None or "string" in allowed:
        return [f"parameter_{name}: {_text(head)} value_{name}", f"value_{name}[suffix={_text(tail)}]: RAW"]
    definitions = {word: root[word] for word in ("$defs", "definitions") if word in root}
    implied = {} if {"$ref", "anyOf", "oneOf", "allOf"} & schema.keys() else {"type": sorted(allowed)}
    own = {**definitions, **implied, **schema, "x-guidance": _AS_TEMPLATE_PRINTS}
    body = json.dumps(own, ensure_ascii=False)
    return [f"parameter_{name}: {_text(head)} value_{name} {_text(tail)}", f"value_{name}: %json {body}"]


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _control(mark: str, control_tokens: Mapping[str, int]) -> str:
    """The control token where the tokenizer has one for the mark: its letters would be another token sequence."""
    return f"<[{control_tokens[mark]}]>" if mark in control_tokens else _text(mark)
