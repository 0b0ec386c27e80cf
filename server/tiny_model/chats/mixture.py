"""The mixture of all chats, and the held-out evaluation set."""

import random

from chats.arithmetic import q_arith, q_unit, q_word
from chats.copying import q_echo, q_json
from chats.counting import q_count, q_list, q_numbers
from chats.days import q_calendar
from chats.exercises import d_drill, d_multi, d_single
from chats.facts import q_fact
from chats.letters import q_letters
from chats.long_context import d_long
from chats.memory import d_memory
from chats.reading import q_lookup, q_read
from chats.smalltalk import q_chat, q_unknown
from chats.snippets import q_code
from chats.story import q_story
from chats.system_prompt import d_rules, d_system
from chats.tool_chat import d_tool_call, d_tool_chat, d_tool_none, d_tool_result


def make_doc(r, ev=False, mix=None):
    f = r.choices(
        [
            d_single,
            d_multi,
            d_memory,
            d_system,
            d_rules,
            d_long,
            d_tool_call,
            d_tool_result,
            d_tool_none,
            d_tool_chat,
            lambda r, ev: d_single(r, ev, lambda r, ev: q_echo(r, ev, True)),
            d_drill,
        ],
        mix or [26, 8, 12, 7, 3, 6, 14, 4, 5, 6, 3, 12],
    )[0]
    return f(r, ev)


def eval_set(n, seed=777, ev=True):
    """n prompts a skill, whose last message is the expected answer; ev=False: new random documents from the training distribution."""
    one = lambda q: lambda r, ev: d_single(r, ev, q)
    E = {
        "smalltalk": one(q_chat),
        "unknown": one(q_unknown),
        "arithmetic_1_2_digits": one(lambda r, ev: q_arith(r, ev, r.choice("+-"), r.choice([1, 2]))),
        "arithmetic_3_digits": one(lambda r, ev: q_arith(r, ev, r.choice("+-"), 3)),
        "multiply_divide": one(lambda r, ev: q_arith(r, ev, r.choice("*/"))),
        "word_problem": one(q_word),
        "units": one(q_unit),
        "facts": one(q_fact),
        "calendar": one(q_calendar),
        "letters": one(q_letters),
        "counting": one(q_count),
        "numbers": one(q_numbers),
        "listing": one(q_list),
        "echo": one(q_echo),
        "copy_long": one(lambda r, ev: q_echo(r, ev, True)),
        "code": one(q_code),
        "json": one(q_json),
        "reading": one(q_read),
        "lookup_short": one(lambda r, ev: q_lookup(r, ev, r.randint(4, 20))),
        "story": one(q_story),
        "memory": d_memory,
        "multi_turn": d_multi,
        "system_prompt": d_system,
        "system_facts": d_rules,
        "long_context": d_long,
        "tool_call": lambda r, ev: d_tool_call(r, ev, False),
        "tool_call_parallel": lambda r, ev: d_tool_call(r, ev, True),
        "tool_result": d_tool_result,
        "tool_none": d_tool_none,
        "tool_multi_turn": d_tool_chat,
    }
    out = []
    for k, f in E.items():
        i = 0
        got = 0
        while got < n:
            d = f(random.Random(f"eval-{seed}-{k}-{i}"), ev)
            i += 1
            if k == "tool_call_parallel" and len(d["messages"][-1].get("tool_calls", [])) < 2:
                continue
            out.append(d | {"skill": k})
            got += 1
    return out
