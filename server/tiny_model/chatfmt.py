"""Fast renderer of the chat format; must equal chat_template.jinja (generate_data.py --selftest checks it)."""

import json
from pathlib import Path

# the template that ships with the model; export.py copies it, generate_data.py --selftest compares with it
TEMPLATE = Path(__file__).parent.parent / "carousel_server" / "embedded" / "chat_template.jinja"

TOOLS_HEAD = "# Tools\n\nThe functions below are available. Each line inside <tools></tools> is one function, given as a JSON object.\n\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\nTo use a function, write a block of this form:\n\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n"
    "</function>\n</tool_call>\n\nWrite one block for each call, give every required parameter, and add nothing after the last block. "
    "When no function helps, answer in plain words."
)
ASSISTANT = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def dumps(v):
    return json.dumps(v, ensure_ascii=False)


def render_calls(calls, body=""):
    out = []
    for i, c in enumerate(calls):
        f = c.get("function", c)
        s = (
            ("" if i == 0 and not body else ("\n\n" if i == 0 else "\n"))
            + "<tool_call>\n<function="
            + f["name"]
            + ">\n"
        )
        for k, v in f["arguments"].items():
            s += "<parameter=" + k + ">\n" + (v if isinstance(v, str) else dumps(v)) + "\n</parameter>\n"
        out.append(s + "</function>\n</tool_call>")
    return "".join(out)


def assistant_text(m):
    body = (m.get("content") or "").strip()
    return body + render_calls(m.get("tool_calls") or [], body)


def render(messages, tools=None, add_generation_prompt=False):
    out = []
    system = (messages[0]["content"] or "").strip() if messages[0]["role"] == "system" else ""
    if tools:
        out.append(
            "<|im_start|>system\n"
            + TOOLS_HEAD
            + "".join("\n" + dumps(t) for t in tools)
            + TOOLS_TAIL
            + ("\n\n" + system if system else "")
            + "<|im_end|>\n"
        )
    elif system:
        out.append("<|im_start|>system\n" + system + "<|im_end|>\n")
    n = len(messages)
    for i, m in enumerate(messages):
        role = m["role"]
        if role == "user":
            out.append("<|im_start|>user\n" + m["content"].strip() + "<|im_end|>\n")
        elif role == "assistant":
            out.append(ASSISTANT + assistant_text(m) + "<|im_end|>\n")
        elif role == "tool":
            out.append(
                ("<|im_start|>user" if messages[i - 1]["role"] != "tool" else "")
                + "\n<tool_response>\n"
                + m["content"].strip()
                + "\n</tool_response>"
            )
            if i + 1 == n or messages[i + 1]["role"] != "tool":
                out.append("<|im_end|>\n")
    if add_generation_prompt:
        out.append(ASSISTANT)
    return "".join(out)
