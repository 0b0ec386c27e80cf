"""Chats with tools on offer."""

from chatfmt import dumps
from chats.arithmetic import q_arith, q_unit
from chats.counting import q_list
from chats.days import q_calendar
from chats.exercises import qa
from chats.facts import q_fact
from chats.letters import q_letters
from chats.message import CALL, TOOL, A, U, maybe_sys
from chats.smalltalk import q_chat
from chats.tool import CONFLICT, FAM, Fam, pick_tools

NO_TOOL = "I do not have a tool for that."


def episode(r, ev, T, parallel=None):
    """user -> call(s) [-> results -> answer]; returns messages"""
    t = r.choice(T)
    m = []
    if parallel or (parallel is None and r.random() < 0.18):
        t2 = r.choice(T) if r.random() < 0.5 else t
        (u1, c1, v1), (u2, c2, v2) = t.use(r, ev), t2.use(r, ev)
        if len(u1) + len(u2) < 400 and not (t.key == t2.key == "now"):
            u = (
                u1.rstrip(".") + r.choice([". Also: ", " and then: ", ". And also this: ", "\nThen: "]) + u2
                if u1[-1] != "?"
                else u1 + r.choice([" And also: ", " Then: ", " And: "]) + u2
            )
            if t is t2 and t.key in ("weather", "time") and r.random() < 0.7:
                a = t.alias["city"]
                w = t.key == "weather"
                x, y = c1["arguments"][a], c2["arguments"][a]
                if x != y:
                    u = r.choice(
                        [
                            "What is the weather in {x} and in {y}?",
                            "Compare the weather in {x} and {y}.",
                            "Weather in {x} and {y}?",
                        ]
                        if w
                        else ["What time is it in {x} and in {y}?", "Tell me the time in {x} and {y}."]
                    ).format(x=x, y=y)
                    c1["arguments"], c2["arguments"] = {a: x}, {a: y}
            m = [U(u), CALL([c1, c2])]
            pend = [(t, v1), (t2, v2)]
        else:
            m = [U(u1), CALL([c1])]
            pend = [(t, v1)]
    else:
        u, c, v = t.use(r, ev)
        m = [U(u if r.random() < 0.85 else r.choice(["Hi! ", "Please help me. ", "Hello. ", "Next: "]) + u), CALL([c])]
        pend = [(t, v)]
    return m, pend


def results(r, ev, pend):
    ans, m = [], []
    for t, v in pend:
        if r.random() < 0.08:
            e = r.choice(["not found", "timeout", "permission denied", "invalid value", "service unavailable"])
            m.append(TOOL(dumps({"error": e})))
            ans.append(f"The tool reported an error: {e}.")
        else:
            o = t.res(r, v)
            m.append(TOOL(o if isinstance(o, str) else dumps(o)))
            ans.append(t.ans(v, o))
    return m + [A(" ".join(ans) if not any("\n" in a for a in ans) else "\n".join(ans))]


def d_tool_call(r, ev, parallel=None):
    """One request, the call is the target."""
    T = pick_tools(r, ev, r.choice([1, 2, 2, 3, 4]))
    m, _ = episode(r, ev, T, parallel)
    return dict(
        messages=maybe_sys(r) + m,
        tools=[t.tool for t in T],
        skill="tool_call_parallel" if len(m[-1]["tool_calls"]) > 1 else "tool_call",
        short=None,
    )


def d_tool_result(r, ev):
    T = pick_tools(r, ev, r.choice([1, 1, 2, 3]))
    m, p = episode(r, ev, T)
    return dict(
        messages=maybe_sys(r) + m + results(r, ev, p), tools=[t.tool for t in T], skill="tool_result", short=None
    )


def plain_for(r, ev, T):
    while True:
        d = qa(r, ev, r.choice([q_chat, q_fact, q_arith, q_calendar, q_letters, q_list, q_unit]))
        if CONFLICT.get(d["k"]) not in [t.key for t in T] or d["k"] not in CONFLICT:
            return d


def d_tool_none(r, ev):
    """Tools are offered but none fits: answer plainly, or say that no tool fits."""
    T = pick_tools(r, ev, r.choice([1, 2, 2, 3]))
    if r.random() < 0.6:
        d = plain_for(r, ev, T)
        m = [U(d["u"]), A(d["a"])]
    else:
        T2 = pick_tools(r, ev, 1, ban=[t.key for t in T] + ["calc", "run", "shell", "translate"])
        if T2[0].key is None and any(t.key is None and (t.vb == T2[0].vb and t.ob == T2[0].ob) for t in T):
            T2 = [
                Fam(
                    r,
                    ev,
                    r.choice([k for k in FAM if k not in [t.key for t in T] + ["calc", "run", "shell", "translate"]]),
                )
            ]
        u, c, v = T2[0].use(r, ev)
        m = [U(u), A(NO_TOOL)]
    return dict(messages=maybe_sys(r) + m, tools=[t.tool for t in T], skill="tool_none", short=None)


def d_tool_chat(r, ev):
    """Several turns with tools: calls, results, plain questions, follow-ups."""
    T = pick_tools(r, ev, r.choice([1, 2, 3]))
    m = maybe_sys(r)
    for _ in range(r.randint(2, 4)):
        x = r.random()
        if x < 0.65:
            e, p = episode(r, ev, T, parallel=False if r.random() < 0.7 else None)
            m += e + results(r, ev, p)
        else:
            d = plain_for(r, ev, T)
            m += [U(d["u"]), A(d["a"])]
    if r.random() < 0.5 or ev:
        e, p = episode(r, ev, T, parallel=False)
        m += e
    return dict(messages=m, tools=[t.tool for t in T], skill="tool_multi_turn", short=None)
