"""Stories."""

import zlib

from chats.draws import name
from chats.question import Q
from chats.words import ANIMALS, NAMES, W


def q_story(r, ev):
    n = name(r, ev)
    a = r.choice(ANIMALS)
    p = r.choice(["forest", "village", "castle", "island", "mountain", "garden", "harbor", "valley"])
    o = r.choice(W("lantern key map bell ring book coin feather mirror stone"))
    j = r.choice(W("small brave clever gentle happy quiet young curious"))
    f = r.choice(NAMES)
    b = r.choice(ANIMALS)
    z = zlib.crc32((a + p + o).encode())
    pick = lambda L, i: L[(z >> (3 * i)) % len(L)]
    S = [
        f"Once upon a time there was a {j} {a} called {n}.",
        pick(
            [
                f"{n} lived in a {p} far away from the big city.",
                f"The home of {n} was a quiet {p} near the sea.",
                f"{n} lived alone at the edge of a {p}.",
            ],
            0,
        ),
        pick(
            [
                f"One morning {n} found an old {o} under a tree.",
                f"One day {n} saw a golden {o} in the river.",
                f"One evening a stranger gave {n} a strange {o}.",
            ],
            1,
        ),
        pick(
            [
                f"The {o} began to shine and showed a path into the dark.",
                f"The {o} was warm and made a soft sound.",
                f"Nobody knew who had lost the {o}.",
            ],
            2,
        ),
        pick(
            [
                f"{n} took the {o} and walked for three days.",
                f"{n} wanted to find the owner of the {o}.",
                f'"I must find out what this {o} can do," said {n}.',
            ],
            3,
        ),
        f"On the way {n} met a {b} with the name {f}.",
        pick(
            [
                f'"I know this {o}," said {f}. "It belongs to the old queen."',
                f'"Please help me," said {f}. "I cannot find my way home."',
                f'"That {o} is magic," said {f}. "Be careful with it."',
            ],
            4,
        ),
        pick(
            [
                f"Together they crossed the {p} and climbed a high hill.",
                "They walked together through rain and wind.",
                "So they shared some bread and went on together.",
            ],
            5,
        ),
        pick(
            [
                f"At the top they saw a light, and the {o} opened a hidden door.",
                f"In the night the {o} showed them the right way.",
                f"When they were lost, the {o} lit up the road.",
            ],
            6,
        ),
        pick(
            [
                "Behind the door the old queen was waiting and thanked them.",
                f"At last they found the house of {f}, and everybody was glad.",
                f"The people of the {p} danced and sang until the morning.",
            ],
            7,
        ),
        pick(
            [
                f"From that day on {n} and {f} were best friends.",
                f"{n} and {f} never forgot that day.",
                f"{n} kept the {o} and helped many others.",
            ],
            8,
        ),
        "And they lived happily ever after.",
    ]
    m = r.random()
    if m < 0.4:
        return Q(
            r.choice(
                [
                    "Tell me a story about a {j} {a} called {n}, a {o} and a {p}.",
                    "Write a short story about {n} the {j} {a}, who finds a {o} in a {p}.",
                    "Tell a story with a {j} {a} named {n}, a {p} and a {o}.",
                ]
            ).format(j=j, a=a, n=n, o=o, p=p),
            " ".join(S),
            "story",
        )
    if m < 0.7:
        return Q(
            r.choice(
                [
                    "Tell me a story about a {a}.",
                    "Write a story about a {a}.",
                    "I want to hear a story about a {a}.",
                    "Can you tell me a story about a {a}?",
                ]
            ).format(a=a),
            " ".join(S),
            "story",
        )
    if m < 0.85:
        return Q(
            r.choice(
                [
                    "Tell me a story.",
                    "Tell me a short story.",
                    "Write a short story.",
                    "A story, please.",
                    "Can you tell me a story?",
                ]
            ),
            " ".join(S),
            "story",
        )
    return Q(
        r.choice(["Tell me a very short story about a {a}.", "Write a tiny story about a {a}."]).format(a=a),
        " ".join([S[0], S[1], S[10].replace(f" and {f}", " and the moon"), S[11]]),
        "story",
    )
