"""Questions about a text or a table in the prompt."""

from chats.draws import held, made_word, name
from chats.question import Q
from chats.words import ANIMALS, CITIES, FOODS, HOBBIES, JOBS, WORDS


def q_read(r, ev):
    """Small reading comprehension: people with attributes."""
    ps = held(r, False, lambda: [name(r, ev) for _ in range(r.randint(2, 4))])
    ps = list(dict.fromkeys(ps))
    F = []
    for p in ps:
        F.append(
            (
                p,
                dict(
                    city=r.choice(CITIES),
                    pet=r.choice(ANIMALS),
                    food=r.choice(FOODS),
                    job=r.choice(JOBS),
                    n=r.randint(2, 90),
                    hobby=r.choice(HOBBIES),
                ),
            )
        )
    t = " ".join(
        " ".join(
            r.sample(
                [
                    f"{p} lives in {f['city']}.",
                    f"{p} works as a {f['job']}.",
                    f"{p} has a {f['pet']}.",
                    f"{p} likes {f['food']}.",
                    f"{p} is {f['n']} years old.",
                    f"{p} enjoys {f['hobby']}.",
                ],
                6,
            )[:]
        )
        for p, f in F
    )
    p, f = r.choice(F)
    k = r.choice(list(f))
    q, a = {
        "city": (f"Where does {p} live?", f"{p} lives in {f['city']}."),
        "pet": (f"Which pet does {p} have?", f"{p} has a {f['pet']}."),
        "food": (f"What does {p} like to eat?", f"{p} likes {f['food']}."),
        "job": (f"What is the job of {p}?", f"{p} works as a {f['job']}."),
        "n": (f"How old is {p}?", f"{p} is {f['n']} years old."),
        "hobby": (f"What does {p} enjoy?", f"{p} enjoys {f['hobby']}."),
    }[k]
    if r.random() < 0.3:
        q, a = {
            "city": (f"Who lives in {f['city']}?", f"{p} lives in {f['city']}."),
            "n": (f"Who is {f['n']} years old?", f"{p} is {f['n']} years old."),
        }.get(k, (q, a))
        if sum(x[1].get(k) == f[k] for x in F) > 1:
            q, a = f"Where does {p} live?", f"{p} lives in {f['city']}."
    return Q(
        r.choice(["{t}\n\n{q}", "{q}\n\n{t}", "Read this text: {t}\n\n{q}", "Text: {t}\nQuestion: {q}"]).format(
            t=t, q=q
        ),
        a,
        "reading",
        raw=True,
    )


def q_lookup(r, ev, n=None):
    n = n or int(8 * (8 ** r.random()))
    ks = list(
        dict.fromkeys(
            (made_word(r, False) if r.random() < 0.4 else r.choice(WORDS) + "-" + str(r.randint(1, 99)))
            for _ in range(n)
        )
    )
    vs = [
        r.choice([str(r.randint(10, 9999)), r.choice(WORDS), r.choice("ABCDEFGH") + str(r.randint(10, 999))])
        for _ in ks
    ]
    i = r.randrange(len(ks))
    sep = r.choice([": ", " = ", " -> "])
    t = "\n".join(k + sep + v for k, v in zip(ks, vs))
    q = r.choice(
        ["What is the value of {k}?", "Look up {k}.", "Which value belongs to {k}?", "Find the entry {k}."]
    ).format(k=ks[i])
    return Q(
        r.choice(["Here is a list:\n{t}\n\n{q}", "{t}\n\n{q}", "Use this table.\n{t}\n\n{q}"]).format(t=t, q=q),
        f"The value of {ks[i]} is {vs[i]}.",
        "lookup",
        vs[i],
        raw=True,
    )
