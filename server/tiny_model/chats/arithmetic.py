"""Sums, word problems and units."""

from chats.draws import ROBUST, held, name
from chats.question import Q
from chats.words import FRUITS, W

ADD = [
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} = ?",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "Calculate {a} + {b}.",
    "How much is {a} + {b}?",
    "Compute {a} plus {b}.",
    "What is the sum of {a} and {b}?",
    "Can you add {a} and {b}?",
    "What do you get if you add {b} to {a}?",
    "{a} plus {b} is?",
    "Solve: {a} + {b}",
]
SUB = [
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "{a} - {b} = ?",
    "What is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "Calculate {a} - {b}.",
    "How much is {a} - {b}?",
    "Compute {a} minus {b}.",
    "Take {b} away from {a}.",
    "{a} minus {b} is?",
    "What is the difference of {a} and {b}?",
    "Solve: {a} - {b}",
]
MUL = [
    "What is {a} * {b}?",
    "{a} * {b}",
    "{a} x {b}",
    "{a} × {b} = ?",
    "What is {a} times {b}?",
    "Multiply {a} by {b}.",
    "Calculate {a} * {b}.",
    "How much is {a} times {b}?",
    "Compute {a} × {b}.",
    "What is the product of {a} and {b}?",
    "{a} times {b} is?",
    "Solve: {a} * {b}",
]
DIV = [
    "What is {a} / {b}?",
    "What is {a} divided by {b}?",
    "Divide {a} by {b}.",
    "{a} / {b} = ?",
    "How much is {a} divided by {b}?",
    "{a} ÷ {b}",
]


def q_arith(r, ev, op=None, digits=None):
    op = op or r.choices("+-*/", [5, 4, 3, 1])[0]
    hi = {1: 9, 2: 99, 3: 999}[digits or r.choices([1, 2, 3], [1, 5, 4])[0]]
    if op in "+-":
        a, b = held(
            r,
            ev,
            lambda: (r.randint(0, hi), r.randint(0, hi if r.random() < 0.7 else min(hi, 99))),
            key=lambda v: (op, v),
        )
        if op == "-" and a < b and r.random() < 0.8:
            a, b = b, a
        v = a + b if op == "+" else a - b
        t = ADD if op == "+" else SUB
        full = f"{a} {op} {b} = {v}"
    elif op == "*":
        if ROBUST and not ev and r.random() < 0.5:
            a, b = r.randint(0, 12), r.randint(0, 12)  # the whole small table
        else:
            a, b = held(
                r,
                ev,
                lambda: (
                    (r.randint(0, 12), r.randint(0, 12)) if r.random() < 0.6 else (r.randint(2, 99), r.randint(2, 9))
                ),
                key=lambda v: (op, v),
            )
        v = a * b
        t = MUL
        full = f"{a} × {b} = {v}"
    else:
        b, v = (
            (r.randint(1, 12), r.randint(0, 12))
            if ROBUST
            else held(r, ev, lambda: (r.randint(1, 12), r.randint(0, 12)), key=lambda v: (op, v))
        )
        a = b * v
        t = DIV
        full = f"{a} ÷ {b} = {v}"
    u = r.choice(t).format(a=a, b=b)
    k = "arithmetic_3digit" if hi == 999 and op in "+-" else "arithmetic"
    if r.random() < 0.12:
        return Q(
            u + r.choice([" Only the number, please.", " Just the number.", " Reply with the number only."]),
            str(v),
            k,
            str(v),
        )
    return Q(u, full + ".", k, str(v))


def q_word(r, ev):
    n = name(r, ev)
    a = r.randint(2, 50)
    b = r.randint(1, 49)
    it = r.choice(FRUITS + W("book coin pencil card stamp egg"))
    s = "es" if it in ("peach",) else "s"
    it = "cherrie" if it == "cherry" else it
    k = r.randrange(3)
    if k == 0:
        u = r.choice(
            [
                f"{n} has {a} {it}{s} and gets {b} more. How many {it}{s} does {n} have now?",
                f"{n} had {a} {it}{s}. Then {n} found {b} more. How many are there now?",
                f"If {n} has {a} {it}{s} and buys {b} more, how many {it}{s} is that?",
            ]
        )
        return Q(u, f"{a} + {b} = {a + b}, so {n} has {a + b} {it}{s}.", "word_problem", str(a + b))
    if k == 1:
        a, b = max(a, b), min(a, b)
        u = r.choice(
            [
                f"{n} has {a} {it}{s} and gives away {b}. How many {it}{s} are left?",
                f"{n} had {a} {it}{s} and ate {b}. How many are left?",
                f"From {a} {it}{s} {n} loses {b}. How many {it}{s} remain?",
            ]
        )
        return Q(u, f"{a} - {b} = {a - b}, so {n} has {a - b} {it}{s}.", "word_problem", str(a - b))
    a, b = r.randint(2, 12), r.randint(2, 9)
    u = r.choice(
        [
            f"There are {a} boxes with {b} {it}{s} each. How many {it}{s} are there?",
            f"{n} buys {a} bags and each bag holds {b} {it}{s}. How many {it}{s} is that?",
        ]
    )
    return Q(u, f"{a} × {b} = {a * b}, so there are {a * b} {it}{s}.", "word_problem", str(a * b))


UNITS = [
    ("kilometers", "meters", 1000, 60),
    ("meters", "centimeters", 100, 60),
    ("centimeters", "millimeters", 10, 99),
    ("kilograms", "grams", 1000, 60),
    ("hours", "minutes", 60, 24),
    ("minutes", "seconds", 60, 20),
    ("days", "hours", 24, 14),
    ("weeks", "days", 7, 20),
    ("years", "months", 12, 15),
    ("feet", "inches", 12, 12),
    ("liters", "milliliters", 1000, 30),
    ("tons", "kilograms", 1000, 30),
    ("dozens", "pieces", 12, 12),
    ("decades", "years", 10, 30),
    ("centuries", "years", 100, 30),
]


def q_unit(r, ev):
    a, b, f, m = r.choice(UNITS)
    n = r.randint(2, m)
    u = r.choice(
        [
            "How many {b} are {n} {a}?",
            "Convert {n} {a} to {b}.",
            "What is {n} {a} in {b}?",
            "{n} {a} in {b}?",
            "How many {b} are in {n} {a}?",
            "Please convert {n} {a} into {b}.",
            "Express {n} {a} in {b}.",
        ]
    ).format(a=a, b=b, n=n)
    return Q(u, f"{n} {a} are {n * f} {b}.", "units", str(n * f))
