"""Chats whose system message sets a style or gives facts."""

from chats.arithmetic import q_arith, q_unit
from chats.counting import q_list, q_numbers
from chats.days import q_calendar
from chats.draws import made_word, name
from chats.exercises import qa
from chats.facts import q_fact
from chats.message import PLAIN_SYS, S_, A, U
from chats.smalltalk import q_chat
from chats.words import ADJ, CITIES, DAYS, JOBS, NOUNS


def d_system(r, ev):
    k = r.randrange(9)
    n = name(r, ev)
    w = r.choice(["Ahoy", "Well", "Okay", "Sure", "Indeed", "Listen", "Aha"])
    f = lambda a, s: a
    if k == 0:
        sysm, f = (
            r.choice(
                [
                    "Answer in upper case.",
                    "Write everything in capital letters.",
                    "Always answer in upper case letters.",
                ]
            ),
            lambda a, s: a.upper(),
        )
    elif k == 1:
        sysm, f = (
            r.choice(
                [
                    "Answer in one word.",
                    "Give only the short answer.",
                    "Reply with the answer only, without a sentence.",
                ]
            ),
            lambda a, s: s,
        )
    elif k == 2:
        sysm, f = (
            r.choice(
                [
                    f"Sign every answer with {n}.",
                    f"Sign each answer with the name {n}.",
                    f"End every answer with your name, {n}.",
                ]
            ),
            lambda a, s: a + f"\n— {n}",
        )
    elif k == 3:
        sysm, f = (
            r.choice([f"Begin every answer with {w}.", f"Start each answer with the word {w}."]),
            lambda a, s: f"{w}! {a}",
        )
    elif k == 4:
        sysm, f = (
            r.choice(
                ["Answer in lower case.", "Write everything in small letters.", "Always answer in lower case letters."]
            ),
            lambda a, s: a.lower(),
        )
    elif k == 5:
        sysm, f = (
            r.choice([f"The user is called {n}. Use this name in every answer.", f"Address the user as {n}."]),
            lambda a, s: f"{n}, here is the answer: {a}",
        )
    elif k == 6:
        sysm, f = (
            r.choice(["Put every answer in quotes.", "Write your answers in quotation marks."]),
            lambda a, s: f"“{a}”",
        )
    elif k == 7:
        t = made_word(r, ev, 2, 3)
        sysm, f = (
            r.choice([f"Answer inside <{t}> tags.", f"Wrap every answer in <{t}> tags."]),
            lambda a, s: f"<{t}>{a}</{t}>",
        )
    else:
        j = r.choice(JOBS)
        sysm = r.choice([f"You are {n}, a friendly {j}.", f"Your name is {n}. You work as a {j}."])
        m = [S_(sysm)]
        for _ in range(r.randint(1, 3)):
            x = r.randrange(4)
            if x == 0:
                m += [
                    U(
                        r.choice(
                            ["Who are you?", "What is your name?", "Introduce yourself.", "What should I call you?"]
                        )
                    ),
                    A(
                        f"I am {n}, a friendly {j}."
                        if sysm.startswith("You") and "friendly" in sysm
                        else f"I am {n}. I work as a {j}."
                    ),
                ]
            elif x == 1:
                m += [
                    U(r.choice(["What is your job?", "What do you do?", "What is your profession?"])),
                    A(f"I work as a {j}."),
                ]
            else:
                d = qa(r, ev, r.choice([q_arith, q_fact, q_calendar]))
                m += [U(d["u"]), A(d["a"])]
        if r.random() < 0.5 or ev:
            m += [
                U(r.choice(["Who are you?", "What is your name?"])),
                A(f"I am {n}, a friendly {j}." if "friendly" in sysm else f"I am {n}. I work as a {j}."),
            ]
        return dict(messages=m, tools=None, skill="system_prompt", short=None)
    if r.random() < 0.4:
        sysm = (
            (r.choice(PLAIN_SYS) + " " + sysm)
            if r.random() < 0.5
            else (sysm + " " + r.choice(["Be polite.", "Be brief.", "Be friendly."]))
        )
    m = [S_(sysm)]
    for _ in range(r.randint(1, 4)):
        while True:
            d = qa(r, ev, r.choice([q_arith, q_fact, q_calendar, q_unit, q_numbers, q_chat, q_list]))
            if k != 1 or d["s"]:
                break
        m += [U(d["u"]), A(f(d["a"], d["s"]))]
    return dict(messages=m, tools=None, skill="system_prompt", short=None)


def d_rules(r, ev):
    """Facts given in the system prompt, asked about later."""
    ks = r.sample(
        [
            "opening hour",
            "closing hour",
            "phone number",
            "owner",
            "city",
            "price of the ticket",
            "name of the shop",
            "day off",
            "discount code",
            "room number",
        ],
        r.randint(2, 5),
    )
    v = {}
    for k in ks:
        v[k] = {
            "opening hour": f"{r.randint(6, 11)}:00",
            "closing hour": f"{r.randint(15, 23)}:00",
            "phone number": str(r.randint(100000, 999999)),
            "owner": name(r, ev),
            "city": r.choice(CITIES),
            "price of the ticket": f"{r.randint(1, 90)} coins",
            "name of the shop": r.choice(ADJ).capitalize() + " " + r.choice(NOUNS).capitalize(),
            "day off": r.choice(DAYS),
            "discount code": made_word(r, ev).upper(),
            "room number": str(r.randint(1, 900)),
        }[k]
    m = [
        S_(
            r.choice(
                [
                    "Use these facts to answer.\n",
                    "You work for a small shop. Facts:\n",
                    "Information for your answers:\n",
                ]
            )
            + "\n".join(f"- {k}: {x}" for k, x in v.items())
        )
    ]
    for _ in range(r.randint(1, 3)):
        k = r.choice(ks)
        m += [
            U(
                r.choice(
                    ["What is the {k}?", "Tell me the {k}.", "Can you tell me the {k}?", "I need the {k}."]
                ).format(k=k)
            ),
            A(f"The {k} is {v[k]}."),
        ]
    return dict(messages=m, tools=None, skill="system_facts", short=v[k])
