"""Chats of independent questions."""

from chats.arithmetic import q_arith, q_unit, q_word
from chats.copying import q_echo, q_json
from chats.counting import q_count, q_list, q_numbers
from chats.days import q_calendar
from chats.facts import q_fact
from chats.letters import q_letters
from chats.message import A, U, maybe_sys
from chats.reading import q_read
from chats.smalltalk import q_chat, q_unknown
from chats.snippets import q_code
from chats.story import q_story

QA = [
    (7, q_chat),
    (3, q_unknown),
    (17, q_arith),
    (5, q_word),
    (5, q_unit),
    (10, q_fact),
    (4, q_calendar),
    (6, q_letters),
    (4, q_count),
    (5, q_numbers),
    (4, q_list),
    (8, q_echo),
    (4, q_code),
    (4, q_json),
    (5, q_read),
    (4, q_story),
]
QF, QW = [f for _, f in QA], [w for w, _ in QA]


def noise(r, u, raw):
    if r.random() < 0.15:
        u = (
            r.choice(
                [
                    "Hi! ",
                    "Hello. ",
                    "Hey, ",
                    "Please: ",
                    "Quick question: ",
                    "Next question. ",
                    "Now, ",
                    "Okay. ",
                    "Tell me: ",
                    "One more thing. ",
                ]
            )
            + u
        )
    if raw:
        return u
    if r.random() < 0.10:
        u += r.choice([" Thanks!", " Please.", " Thank you.", " Please answer."])
    x = r.random()
    if x < 0.10:
        u = u.lower()
    elif x < 0.16 and u[-1] in ".?!":
        u = u[:-1]
    elif x < 0.18:
        u = u + "?"
    return u


def qa(r, ev, fn=None):
    d = (fn or r.choices(QF, QW)[0])(r, ev)
    d["u"] = noise(r, d["u"], d["raw"])
    return d


def d_single(r, ev, fn=None):
    d = qa(r, ev, fn)
    return dict(messages=maybe_sys(r) + [U(d["u"]), A(d["a"])], tools=None, skill=d["k"], short=d["s"])


def d_multi(r, ev):
    m = maybe_sys(r)
    for _ in range(r.randint(2, 7)):
        d = qa(r, ev)
        m += [U(d["u"]), A(d["a"])]
    return dict(messages=m, tools=None, skill="multi_turn:" + d["k"], short=d["s"])


def d_drill(r, ev):
    """Many short exercises in one chat (cheap in tokens, many examples)."""
    m = maybe_sys(r, 0.1)
    f = r.choice([q_arith, q_arith, q_arith, None])
    for _ in range(r.randint(4, 12)):
        d = qa(r, ev, f or r.choice([q_word, q_unit, q_numbers, q_letters, q_letters, q_calendar, q_fact]))
        m += [U(d["u"]), A(d["a"])]
    return dict(messages=m, tools=None, skill="drill:" + d["k"], short=d["s"])
