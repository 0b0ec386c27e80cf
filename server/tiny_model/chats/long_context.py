"""Chats beyond the sparse budget."""

from chats.copying import q_echo
from chats.draws import sentence
from chats.memory import MEM
from chats.message import A, U, maybe_sys
from chats.reading import q_lookup


def d_long(r, ev, n=None):
    """Needle questions over long lists, long copies, facts remembered over much text."""
    k = r.randrange(4)
    if k == 0:
        d = q_lookup(r, ev, n or r.randint(30, 110))
        m = [U(d["u"]), A(d["a"])]
        s = "long_lookup"
    elif k == 1:
        d = q_lookup(r, ev, n or r.randint(20, 80))
        m = [U(d["u"]), A(d["a"])]
        lines = [l for l in d["u"].split("\n") if any(x in l for x in (": ", " = ", " -> ")) and "?" not in l]
        for _ in range(r.randint(1, 3)):
            l = r.choice(lines)
            sep = next(x for x in (" -> ", " = ", ": ") if x in l)
            a, b = l.split(sep, 1)
            m += [U(f"And what is the value of {a}?"), A(f"The value of {a} is {b}.")]
        s = "long_lookup"
    elif k == 2:
        f = r.choice(["code", "number", "name", "city"])
        gen, tell, ack, ask, ans = MEM[f]
        v = gen(r, ev)
        m = [U(r.choice(tell).format(v=v)), A(ack.format(v=v))]
        for _ in range(r.randint(1, 3)):
            d = q_echo(r, ev, True)
            m += [U(d["u"]), A(d["a"])]
        m += [U(r.choice(ask)), A(ans.format(v=v))]
        s = "long_memory"
    else:
        L = [sentence(r) for _ in range(r.randint(10, 40))]
        i = r.randrange(min(20, len(L)))
        o = "first second third fourth fifth sixth seventh eighth ninth tenth".split()
        if r.random() < 0.5 and i < 10:
            q = f"What is the {o[i]} line?"
        else:
            q = f"What is line {i + 1}?"
        m = [U("\n".join(f"{j}. {x}" for j, x in enumerate(L, 1)) + "\n\n" + q), A(L[i])]
        s = "long_lookup"
    return dict(messages=maybe_sys(r) + m, tools=None, skill=s, short=None)
