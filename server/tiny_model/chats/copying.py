"""Text to repeat, and values to write as JSON."""

from chatfmt import dumps
from chats.draws import made_word, name, phrase, randstr, sentence
from chats.question import Q
from chats.words import ANIMALS, CITIES, COLOURS, FOODS, VERBS, WORDS


def q_echo(r, ev, long=False):
    if long:
        n = r.randint(4, 22)
        t = r.choice([" ", " ", "\n"]).join(sentence(r) for _ in range(n))
        u = r.choice(
            [
                "Copy the following text exactly:\n\n{t}",
                "Repeat this text word for word:\n\n{t}",
                "{t}\n\nRepeat the text above.",
                "Write this text again without changes:\n\n{t}",
                "Please copy this passage:\n{t}",
            ]
        ).format(t=t)
        return Q(u, t, "copy_long", raw=True)
    k = r.randrange(7)
    t = (
        phrase(r)
        if k == 0
        else sentence(r)
        if k == 1
        else randstr(r)
        if k in (2, 3)
        else " ".join(randstr(r) for _ in range(r.randint(2, 5)))
        if k == 4
        else f"{name(r, ev)} {r.choice(VERBS)} {randstr(r)}"
        if k == 5
        else " ".join(made_word(r, ev) for _ in range(r.randint(1, 5)))
    )
    u = r.choice(
        [
            "Repeat after me: {t}",
            "Say: {t}",
            "Repeat: {t}",
            "Echo: {t}",
            "Echo this text: {t}",
            "Please repeat exactly: {t}",
            "Write exactly this: {t}",
            "Repeat the following: {t}",
            "Say exactly: {t}",
            "Copy this: {t}",
            "Repeat this sentence: {t}",
        ]
    ).format(t=t)
    return Q(u, t, "echo", raw=True)


def q_json(r, ev):
    ks = r.sample(
        ["name", "age", "city", "colour", "count", "active", "title", "price", "id", "tags", "pet", "food"],
        r.randint(2, 4),
    )
    o = {}
    for k in ks:
        o[k] = {
            "name": lambda: name(r, ev),
            "age": lambda: r.randint(1, 99),
            "city": lambda: r.choice(CITIES),
            "colour": lambda: r.choice(COLOURS),
            "count": lambda: r.randint(0, 500),
            "active": lambda: r.random() < 0.5,
            "title": lambda: phrase(r, 1, 3),
            "price": lambda: r.randint(1, 999) / 10,
            "id": lambda: r.choice("ABCDEFG") + str(r.randint(10, 999)),
            "tags": lambda: r.sample(WORDS, 2),
            "pet": lambda: r.choice(ANIMALS),
            "food": lambda: r.choice(FOODS),
        }[k]()
    d = (
        r.choice([", ".join, " and ".join])([f"{k} {v if isinstance(v, str) else dumps(v)}" for k, v in o.items()])
        if r.random() < 0.5
        else ", ".join(f"{k} = {v if isinstance(v, str) else dumps(v)}" for k, v in o.items())
    )
    return Q(
        r.choice(
            [
                "Write a JSON object with {d}.",
                "Give me JSON with {d}.",
                "Make a JSON object: {d}",
                "Return this as JSON: {d}",
            ]
        ).format(d=d),
        dumps(o),
        "json",
        raw=True,
    )
