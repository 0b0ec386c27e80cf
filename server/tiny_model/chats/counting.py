"""Counting, comparing numbers, and lists of things."""

from chats.question import Q
from chats.words import LISTS, NUMW, WORDS


def q_count(r, ev):
    k = r.randrange(8)
    if k == 0:
        n = r.choice([5, 10, 12, 15, 20, 25, 30]) if r.random() < 0.8 else r.randint(3, 60)
        return Q(
            r.choice(
                [
                    f"Count to {n}.",
                    f"Count from 1 to {n}.",
                    f"Please count up to {n}.",
                    f"List the numbers from 1 to {n}.",
                ]
            ),
            ", ".join(map(str, range(1, n + 1))) + ".",
            "counting",
        )
    if k == 1:
        n = r.randint(3, 30)
        return Q(
            r.choice([f"Count down from {n}.", f"Count backwards from {n} to 1.", f"Count down from {n} to 1."]),
            ", ".join(map(str, range(n, 0, -1))) + ".",
            "counting",
        )
    if k == 2:
        a = r.randint(2, 80)
        b = a + r.randint(2, 20)
        return Q(
            r.choice([f"Count from {a} to {b}.", f"List the numbers from {a} to {b}."]),
            ", ".join(map(str, range(a, b + 1))) + ".",
            "counting",
        )
    if k == 3:
        n = r.randint(2, 12)
        return Q(
            r.choice(
                [
                    f"Write the multiplication table of {n}.",
                    f"Show me the times table of {n}.",
                    f"Give me the table of {n}.",
                ]
            ),
            "\n".join(f"{n} × {i} = {n * i}" for i in range(1, 11)),
            "counting",
        )
    if k == 4:
        n = r.choice([10, 20, 30, 40])
        e = r.random() < 0.5
        return Q(
            f"List the {'even' if e else 'odd'} numbers up to {n}.",
            ", ".join(map(str, range(2 if e else 1, n + 1, 2))) + ".",
            "counting",
        )
    if k == 5:
        n = r.randint(0, 20)
        return Q(
            r.choice(
                [f"Write the number {n} as a word.", f"How do you write {n} in words?", f"Spell out the number {n}."]
            ),
            f"{n} is written as {NUMW[n]}.",
            "counting",
            NUMW[n],
        )
    if k == 6:
        return Q(
            r.choice(
                [
                    "Say the alphabet.",
                    "Write the alphabet.",
                    "List the letters of the alphabet.",
                    "Recite the alphabet.",
                ]
            ),
            "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
            "counting",
        )
    w = r.choice(WORDS)
    n = r.randint(2, 8)
    return Q(
        r.choice([f"Say {w} {n} times.", f"Repeat the word {w} {n} times.", f"Write {w} {n} times."]),
        " ".join([w] * n),
        "counting",
    )


def q_numbers(r, ev):
    hi = r.choice([20, 100, 1000])
    L = r.sample(range(1, hi), r.randint(3, 6))
    s = ", ".join(map(str, L))
    k = r.randrange(6)
    if k == 0:
        return Q(
            r.choice(
                [
                    f"Which number is the largest: {s}?",
                    f"What is the largest number in {s}?",
                    f"Find the maximum of {s}.",
                ]
            ),
            f"The largest number is {max(L)}.",
            "numbers",
            str(max(L)),
        )
    if k == 1:
        return Q(
            r.choice(
                [
                    f"Which number is the smallest: {s}?",
                    f"What is the smallest number in {s}?",
                    f"Find the minimum of {s}.",
                ]
            ),
            f"The smallest number is {min(L)}.",
            "numbers",
            str(min(L)),
        )
    if k == 2:
        return Q(
            r.choice(
                [f"Sort these numbers: {s}", f"Sort {s} from small to large.", f"Put these numbers in order: {s}"]
            ),
            ", ".join(map(str, sorted(L))) + ".",
            "numbers",
        )
    if k == 3:
        n = r.randint(0, 999)
        e = "even" if n % 2 == 0 else "odd"
        return Q(r.choice([f"Is {n} even or odd?", f"Is the number {n} odd or even?"]), f"{n} is {e}.", "numbers", e)
    if k == 4:
        a, b = r.sample(range(1, hi), 2)
        return Q(
            r.choice([f"Which is larger, {a} or {b}?", f"Which is bigger: {a} or {b}?", f"What is more, {a} or {b}?"]),
            f"{max(a, b)} is larger than {min(a, b)}.",
            "numbers",
            str(max(a, b)),
        )
    n = r.randint(0, 998)
    return Q(
        r.choice([f"What number comes after {n}?", f"Which number follows {n}?", f"What comes after {n}?"]),
        f"{n + 1} comes after {n}.",
        "numbers",
        str(n + 1),
    )


def q_list(r, ev):
    c = r.choice(list(LISTS))
    n = r.randint(2, min(10, len(LISTS[c])))
    L = LISTS[c][:n]
    k = r.randrange(3)
    nw = NUMW[n] if r.random() < 0.3 else n
    base = r.choice(
        [f"List {nw} {c}", f"Name {nw} {c}", f"Give me {nw} {c}", f"Tell me {nw} {c}", f"Write down {nw} {c}"]
    )
    if k == 0:
        return Q(base + ".", "\n".join(f"{i}. {x}" for i, x in enumerate(L, 1)), "listing")
    if k == 1:
        return Q(
            base + r.choice([" as bullets.", " as a bullet list.", " with bullet points."]),
            "\n".join(f"- {x}" for x in L),
            "listing",
        )
    return Q(base + r.choice([" in one line.", " separated by commas.", " with commas."]), ", ".join(L), "listing")
