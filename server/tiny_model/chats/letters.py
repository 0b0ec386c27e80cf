"""Spelling."""

from chats.question import Q
from chats.words import WORDS


def q_letters(r, ev):
    k = r.randrange(9)
    w = r.choice(WORDS)
    AL = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    short = r.choice([x for x in WORDS if len(x) <= 6])
    if k in (0, 1):
        return Q(
            r.choice(["Spell the word {w}.", "How do you spell {w}?", "Spell {w}.", "Please spell {w} for me."]).format(
                w=w
            ),
            f"{w.capitalize()} is spelled {'-'.join(w.upper())}.",
            "letters",
            "-".join(w.upper()),
        )
    if k in (2, 3):
        return Q(
            r.choice(
                [
                    "Reverse the word {w}.",
                    "Write {w} backwards.",
                    "What is {w} spelled backwards?",
                    "Say {w} in reverse.",
                ]
            ).format(w=short),
            f"{short} backwards is {short[::-1]}.",
            "letters",
            short[::-1],
        )
    if k == 4:
        return Q(
            r.choice(
                [
                    "How many letters does {w} have?",
                    "How many letters are in the word {w}?",
                    "Count the letters of {w}.",
                ]
            ).format(w=w),
            f"The word {w} has {len(w)} letters.",
            "letters",
            str(len(w)),
        )
    if k == 5:
        return Q(
            r.choice(["What is the first letter of {w}?", "With which letter does {w} start?"]).format(w=w),
            f"The first letter of {w} is {w[0].upper()}.",
            "letters",
            w[0].upper(),
        )
    if k == 6:
        return Q(
            r.choice(["What is the last letter of {w}?", "With which letter does {w} end?"]).format(w=w),
            f"The last letter of {w} is {w[-1].upper()}.",
            "letters",
            w[-1].upper(),
        )
    i = r.randrange(26)
    if k == 7 and i < 25:
        return Q(
            r.choice(
                [
                    f"Which letter comes after {AL[i]}?",
                    f"What letter is after {AL[i]}?",
                    f"What is the letter after {AL[i]}?",
                ]
            ),
            f"{AL[i + 1]} comes after {AL[i]}.",
            "letters",
            AL[i + 1],
            raw=True,
        )
    if k == 8 and i > 0:
        return Q(
            r.choice([f"Which letter comes before {AL[i]}?", f"What letter is before {AL[i]}?"]),
            f"{AL[i - 1]} comes before {AL[i]}.",
            "letters",
            AL[i - 1],
            raw=True,
        )
    return Q(
        r.choice([f"What is {w} in upper case?", f"Write {w} in capital letters.", f"Convert {w} to upper case."]),
        f"{w.upper()}",
        "letters",
        w.upper(),
    )
