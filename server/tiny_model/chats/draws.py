"""Random words, names and sentences, and the separation of what is held out of training."""

import os
import zlib

from chats.words import (
    ADJ,
    ANIMALS,
    CITIES,
    CJK,
    COLOURS,
    DAYS,
    EMOJI,
    FOODS,
    HOBBIES,
    JOBS,
    MONTHS,
    NAMES,
    NAMES_HELD,
    NOUNS,
    OTHER,
    SYL,
    VERBS,
    WORDS,
    W,
)

ROBUST = os.environ.get("TINY_DATA", "1") == "2"  # second data set: arbitrary names, words and code (train.py --data 2)


def h16(*a):
    """Stable hash to 0..15; class 0 is held out for evaluation."""
    return zlib.crc32(repr(a).encode()) % 16


def held(r, ev, make, key=None, tries=60):
    """Draw from make() until the draw is in (ev) or out of (not ev) the held-out hash class."""
    for _ in range(tries):
        v = make()
        if (h16(key(v) if key else v) == 0) == ev:
            return v
    return v


def free_word(r, lo=1, hi=3):
    """Any pronounceable or unpronounceable word: forces copying of token sequences never seen before."""
    if r.random() < 0.2:
        return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(3, 9)))
    C, V, E = (
        W("b c d f g h j k l m n p r s t v w z br ch cl cr dr fl gr kn pl pr qu sc sh sl sp st th tr wh"),
        W("a e i o u a e i o ai ea ee ie oo ou"),
        W("_ _ _ b d l m n n r r s t ck ft ld ll lm mp nd ng nk nn ns nt rd rk rl rn rt sh ss st th x y"),
    )
    return "".join(
        (r.choice(C) if i or r.random() < 0.8 else "") + r.choice(V) + r.choice(E).strip("_")
        for i in range(r.randint(lo, hi))
    )


def made_word(r, ev, lo=2, hi=4):
    if ROBUST and not ev and r.random() < 0.5:
        return free_word(r)
    return held(r, ev, lambda: "".join(r.choice(SYL) for _ in range(r.randint(lo, hi))))


def name(r, ev):
    if ev:
        return r.choice(NAMES_HELD)
    if ROBUST and r.random() < 0.5:
        return free_word(r).capitalize()
    return r.choice(NAMES) if r.random() < 0.75 else made_word(r, ev, 2, 3).capitalize()


def sentence(r):
    n, v = r.choice(NOUNS), r.choice(VERBS)
    k = r.randrange(7)
    if k == 0:
        return f"The {r.choice(ADJ)} {r.choice(ANIMALS)} {v} near the {n}."
    if k == 1:
        return f"{r.choice(NAMES)} {v} to the {r.choice(ADJ)} {n}."
    if k == 2:
        return f"There are {r.randint(2, 99)} {n}s in {r.choice(CITIES)}."
    if k == 3:
        return f"Every {r.choice(DAYS)} the {r.choice(JOBS)} {v} with a {n}."
    if k == 4:
        return f"{r.choice(NAMES)} and {r.choice(NAMES)} like {r.choice(FOODS)} and {r.choice(HOBBIES)}."
    if k == 5:
        return f"In {r.choice(MONTHS)} the {n} was {r.choice(ADJ)} and {r.choice(ADJ)}."
    return f"A {r.choice(COLOURS)} {n} costs {r.randint(1, 500)} coins."


def randstr(r):
    k = r.randrange(7)
    if k == 0:
        return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(3, 9)))
    if k == 1:
        return "".join(r.choice("0123456789abcdef") for _ in range(r.randint(4, 12)))
    if k == 2:
        return "".join(r.choice(CJK) for _ in range(r.randint(2, 8)))
    if k == 3:
        return "".join(r.choice(EMOJI) for _ in range(r.randint(1, 5)))
    if k == 4:
        return " ".join(r.choice(OTHER) for _ in range(r.randint(1, 4)))
    if k == 5:
        return "-".join(r.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") + str(r.randint(1, 999)) for _ in range(r.randint(1, 3)))
    return r.choice(["#", "@", "§", "→", "✓", "€", "£", "…"]) + r.choice(WORDS)


def phrase(r, lo=2, hi=6):
    return " ".join(r.choice(WORDS) for _ in range(r.randint(lo, hi)))
