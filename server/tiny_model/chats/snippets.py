"""Pieces of code."""

from chats.draws import ROBUST, free_word, made_word
from chats.question import Q
from chats.words import WORDS


def free_code(r):
    """Lines of Python-like code with nested indentation, put together at random."""
    w = lambda: r.choice(WORDS) if r.random() < 0.5 else free_word(r, 1, 2)
    n = lambda: r.choice([str(r.randint(0, 99)), w(), f"{w()}[{r.randint(0, 9)}]", f'"{w()}"', f"{w()}.{w()}"])
    out, d = [], 0
    for _ in range(r.randint(2, 9)):
        k = r.randrange(10)
        x = "    " * d
        if k < 3 and d < 3:
            out.append(
                x
                + r.choice(
                    [
                        f"def {w()}({', '.join(w() for _ in range(r.randint(0, 3)))}):",
                        f"for {w()} in {r.choice(['range(' + n() + ')', w(), 'enumerate(' + w() + ')'])}:",
                        f"if {n()} {r.choice(['==', '<', '>', '!=', 'in'])} {n()}:",
                        f"while {w()}:",
                        f"class {w().capitalize()}:",
                        f"with open({n()}) as f:",
                        "try:",
                        "else:",
                    ]
                )
            )
            d += 1
        else:
            out.append(
                x
                + r.choice(
                    [
                        f"{w()} = {n()} {r.choice('+-*/')} {n()}",
                        f"print({', '.join(n() for _ in range(r.randint(1, 3)))})",
                        f"return {n()}",
                        f"{w()}.append({n()})",
                        f"{w()} += {n()}",
                        f"import {w()}",
                        f"# {w()} {w()} {w()}",
                        f"{w()}({n()}, {w()}={n()})",
                        f"{w()} = [{n()}, {n()}]",
                        "pass",
                        f"assert {n()}",
                        "",
                    ]
                )
            )
            if d and r.random() < 0.35:
                d -= r.randint(1, d)
    return "\n".join(out).strip() or "pass"


def code(r):
    if ROBUST and r.random() < 0.6:
        return free_code(r)
    a, b, c = r.sample(WORDS, 3)
    n = r.randint(2, 50)
    k = r.randrange(8)
    if k == 0:
        return f"def {a}({b}, {c}):\n    return {b} {r.choice('+-*')} {c}"
    if k == 1:
        return f"for {a} in range({n}):\n    if {a} % {r.randint(2, 9)} == 0:\n        print({a})"
    if k == 2:
        return f"def {a}({b}):\n    total = 0\n    for x in {b}:\n        total += x * {n}\n    return total"
    if k == 3:
        return f'import {r.choice(["os", "sys", "json", "math", "time"])}\n\n{a} = {n}\nwhile {a} > 0:\n    {a} -= 1\nprint("{b}", {a})'
    if k == 4:
        return f"class {a.capitalize()}:\n    def __init__(self, {b}):\n        self.{b} = {b}\n\n    def {c}(self):\n        return self.{b} + {n}"
    if k == 5:
        return f"SELECT {a}, {b}\nFROM {c}\nWHERE {a} > {n}\nORDER BY {b};"
    if k == 6:
        return f"function {a}({b}) {{\n  const {c} = {b} * {n};\n  return {c};\n}}"
    return f'#!/bin/sh\nfor f in *.{a}; do\n  echo "$f"\n  cp "$f" {b}/{c}\ndone'


def q_code(r, ev):
    if r.random() < 0.4:
        c = code(r)
        return Q(
            r.choice(
                [
                    "Repeat this code:\n```\n{c}\n```",
                    "Copy this code exactly:\n```\n{c}\n```",
                    "Print this code again:\n```\n{c}\n```",
                ]
            ).format(c=c),
            f"```\n{c}\n```",
            "code",
            raw=True,
        )
    f = r.choice(
        ["add", "subtract", "multiply", "double", "square", "max", "greet", "even", "sum", "count", "hello", "loop"]
    )
    n = made_word(r, ev, 2, 3) if r.random() < 0.6 else None
    fn = n or {"add": "add", "max": "larger", "even": "is_even", "sum": "total", "count": "count_items"}.get(f, f)
    d, c = {
        "add": ("adds two numbers", "def {n}(a, b):\n    return a + b"),
        "subtract": ("subtracts two numbers", "def {n}(a, b):\n    return a - b"),
        "multiply": ("multiplies two numbers", "def {n}(a, b):\n    return a * b"),
        "double": ("doubles a number", "def {n}(x):\n    return 2 * x"),
        "square": ("squares a number", "def {n}(x):\n    return x * x"),
        "max": ("returns the larger of two numbers", "def {n}(a, b):\n    if a > b:\n        return a\n    return b"),
        "greet": ("greets a person", 'def {n}(name):\n    print("Hello, " + name + "!")'),
        "even": ("checks if a number is even", "def {n}(x):\n    return x % 2 == 0"),
        "sum": (
            "sums a list of numbers",
            "def {n}(items):\n    total = 0\n    for x in items:\n        total += x\n    return total",
        ),
        "count": (
            "counts the items of a list",
            "def {n}(items):\n    count = 0\n    for x in items:\n        count += 1\n    return count",
        ),
        "hello": ("prints hello world", 'def {n}():\n    print("Hello, world!")'),
        "loop": ("prints the numbers from 1 to n", "def {n}(n):\n    for i in range(1, n + 1):\n        print(i)"),
    }[f]
    u = r.choice(
        [
            "Write a Python function that {d}.",
            "Give me a Python function that {d}.",
            "Please write Python code that {d}.",
            "Show me a Python function that {d}.",
        ]
    ).format(d=d)
    if n:
        u = u[:-1] + r.choice([f" and is called {n}.", f". Name it {n}.", f". Call it {n}."])
    return Q(u, f"```python\n{c.format(n=fn)}\n```", "code")
