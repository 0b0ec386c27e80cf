"""Tools: one of a family under some alias, or one with a random schema."""

from chatfmt import dumps
from chats.assistant_tools import ASSISTANT
from chats.computer_tools import COMPUTER
from chats.draws import held, made_word, name, phrase, randstr, sentence
from chats.service_tools import SERVICE
from chats.tool_values import date, path, url
from chats.words import CITIES, WORDS, W

# family: name aliases, descriptions, params {slot: (aliases, type, descriptions, required)}, value makers, user templates, result, answer
# A template that leaves out a slot leaves that (optional) parameter out of the call.
FAM = ASSISTANT | COMPUTER | SERVICE
CONFLICT = {"arithmetic": "calc", "arithmetic_3digit": "calc", "units": "calc", "facts": "translate"}
KW = W(
    "action alpha amount base beta block branch budget cache channel code color config count delta depth detail device domain driver entry factor feature field filter flag format group height host index interval kind label layer level limit line mode model module node note offset option owner page period phase pin port prefix priority profile range rank ratio region role round row rule scale scope score seed section serial shape shift signal site size slot source speed stage step stock style suffix table tag target task team theme threshold tier token topic track type unit user value variant version volume weight width window zone"
)
VB = W(
    "create delete update fetch list move copy check start stop send open close build merge split rotate scan print export import sync lock unlock approve reject archive publish restore measure assign book cancel rename resize"
)
OB = W(
    "record report ticket invoice image robot sensor engine folder backup server queue order sample camera door machine printer account device payment package route batch bucket cluster contract customer dataset document drone elevator fan garden heater job key lamp message model motor note oven parcel picture pipeline pump room satellite schedule session shelf ship signal storage table tank train tunnel vehicle wallet warehouse"
)


def style(r, words):
    k = r.randrange(6)
    if k < 3:
        return "_".join(words)
    if k == 3:
        return words[0] + "".join(w.capitalize() for w in words[1:])
    if k == 4:
        return "-".join(words)
    return ".".join(words)


def typed(r, ev, t):
    if t == "string":
        return r.choice(
            [
                lambda: r.choice(WORDS),
                lambda: phrase(r, 1, 3),
                lambda: r.choice(CITIES),
                lambda: name(r, ev),
                lambda: made_word(r, ev),
                lambda: randstr(r),
                lambda: date(r),
                lambda: path(r),
                lambda: r.choice("ABCDEFGH") + str(r.randint(1, 999)),
                lambda: url(r),
            ]
        )()
    if t == "integer":
        return r.choice([r.randint(0, 9), r.randint(10, 99), r.randint(100, 9999), -r.randint(1, 99)])
    if t == "number":
        return r.choice([r.randint(1, 999) / 10, r.randint(1, 999) / 100, r.randint(1, 50) + 0.5])
    if t == "boolean":
        return r.random() < 0.5
    if t == "array":
        return (
            [r.choice(WORDS) for _ in range(r.randint(1, 4))]
            if r.random() < 0.6
            else [r.randint(0, 99) for _ in range(r.randint(1, 4))]
        )
    return {r.choice(KW): r.choice([r.randint(0, 99), r.choice(WORDS), True, False]) for _ in range(r.randint(1, 3))}


def show(v):
    return v if isinstance(v, str) else dumps(v)


def wrap(r, nm, desc, props, req):
    p = {"type": "object", "properties": props}
    if req or r.random() < 0.5:
        p["required"] = req
    if r.random() < 0.1:
        p["additionalProperties"] = False
    f = {"name": nm, "description": desc, "parameters": p}
    if r.random() < 0.07:
        f["strict"] = True
    if r.random() < 0.05:
        f.pop("description")
    return {"type": "function", "function": f}


class Fam:
    def __init__(s, r, ev, key):
        names, descs, ps, s.vals, s.users, s.res, s.ans = FAM[key]
        s.key = key
        s.name = held(
            r,
            ev,
            lambda: (
                r.choice(names)
                if r.random() < 0.75
                else r.choice(names) + r.choice(["_v2", "_tool", "2", "_api"])
                if r.random() < 0.7
                else made_word(r, ev, 2, 3) + "_" + r.choice(WORDS)
            ),
        )
        s.alias = {}
        props = {}
        req = []
        for slot, (al, t, ds, rq) in ps.items():
            a = r.choice(al)
            while a in s.alias.values():
                a = r.choice(al + [a + "_2"])
            s.alias[slot] = a
            props[a] = {"type": t}
            if t == "array":
                props[a]["items"] = {"type": "string"}
            if r.random() < 0.9:
                props[a]["description"] = r.choice(ds)
            if rq:
                req.append(a)
        s.tool = wrap(r, s.name, r.choice(descs), props, req)

    def use(s, r, ev):
        """-> (user text, call, result text, answer)"""
        v = s.vals(r, ev)
        t = r.choice(s.users)
        force = {}
        for tag, slot in (("ON", "on"), ("REP", "rep"), ("FAST", "fast"), ("ADMIN", "admin")):
            if t.startswith(tag + ":"):
                t = t[len(tag) + 1 :]
                force[slot] = True
        v |= force
        fmt = {k: (", ".join(x) if isinstance(x, list) else x) for k, x in v.items()}
        if "on" in v:
            fmt["onoff"] = "on" if v["on"] else "off"
        u = t.format(**fmt)
        args = {s.alias[k]: v[k] for k in s.alias if "{" + k + "}" in t or k in force or (k == "on")}
        return u, {"name": s.name, "arguments": args}, v


class Rand:
    key = None

    def __init__(s, r, ev):
        s.vb, s.ob = held(r, ev, lambda: (r.choice(VB), r.choice(OB)))
        w = [s.vb, s.ob] + ([r.choice(KW)] if r.random() < 0.2 else [])
        s.name = (
            style(r, w) if r.random() < 0.85 else made_word(r, ev, 2, 3) + r.choice(["", "_" + made_word(r, ev, 1, 3)])
        )
        s.types = {}
        props = {}
        req = []
        for _ in range(r.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])):
            k = (
                r.choice(KW)
                if r.random() < 0.6
                else r.choice(KW) + r.choice(["_", "_", ""]) + r.choice(KW + ["id", "name", "max", "min"])
            )
            if r.random() < 0.1:
                k = made_word(r, ev, 2, 3)
            if k in s.types:
                continue
            t = r.choice(W("string string string integer integer number boolean array object"))
            s.types[k] = t
            props[k] = {"type": t}
            if r.random() < 0.6:
                props[k]["description"] = r.choice(
                    [f"The {k.replace('_', ' ')}", f"{k.replace('_', ' ').capitalize()} of the {s.ob}", f"Value of {k}"]
                )
            if r.random() < 0.7:
                req.append(k)
        s.req = req
        s.tool = wrap(
            r,
            s.name,
            f"{s.vb.capitalize()} {'an' if s.ob[0] in 'aeiou' else 'a'} {s.ob}{r.choice(['.', '', ' in the system.'])}",
            props,
            req,
        )

    def use(s, r, ev):
        ks = [k for k in s.types if k in s.req or r.random() < 0.5]
        v = {k: typed(r, ev, s.types[k]) for k in ks}
        o = list(ks)
        r.shuffle(o)
        direct = r.random() < 0.55
        P = lambda sep, eq: sep.join(f"{k}{eq}{show(v[k])}" for k in o)
        head = (
            r.choice(
                ["Call {n}", "Use {n}", "Run {n}", "Please call the function {n}", "Use the tool {n}", "Execute {n}"]
            ).format(n=s.name)
            if direct
            else r.choice(
                ["{V} the {o}", "Please {v} the {o}", "I want you to {v} the {o}", "Can you {v} the {o}", "{V} a {o}"]
            ).format(V=s.vb.capitalize(), v=s.vb, o=s.ob)
        )
        if not o:
            u = head + "."
        else:
            u = r.choice(
                [
                    lambda: head + " with " + P(", ", " = "),
                    lambda: head + " with " + P(" and ", " "),
                    lambda: head + " with " + P(" and ", " set to "),
                    lambda: head + ".\n" + P("\n", ": "),
                    lambda: head + ": " + P(", ", "="),
                    lambda: head + " using " + P(", ", " "),
                    lambda: head + ", " + P(", ", ": "),
                    lambda: head + " with these values: " + dumps({k: v[k] for k in o}),
                ]
            )()
        return u, {"name": s.name, "arguments": {k: v[k] for k in s.types if k in v}}, v

    def res(s, r, v):
        k = r.randrange(4)
        if k == 0:
            return dict(status="ok", id=r.choice("ABCDEFG") + str(r.randint(10, 999)))
        if k == 1:
            return {r.choice(KW): r.choice([r.randint(0, 999), r.choice(WORDS)]) for _ in range(r.randint(1, 3))}
        if k == 2:
            return sentence(r)
        return dict(result=r.choice([r.randint(0, 999), r.choice(WORDS), True, False]))

    def ans(s, v, o):
        if isinstance(o, str):
            return f"The tool {s.name} says: {o}"
        return "Done. " + ", ".join(f"{k}: {show(x)}" for k, x in o.items()) + "."


def pick_tools(r, ev, n, ban=()):
    out, keys, names = [], set(ban), set()
    while len(out) < n:
        t = Rand(r, ev) if r.random() < 0.5 else Fam(r, ev, r.choice(list(FAM)))
        if t.name in names or (t.key and t.key in keys):
            continue
        if (
            t.key == "event"
            and "todo" in keys
            or t.key == "run"
            and "shell" in keys
            or t.key == "shell"
            and "run" in keys
        ):
            continue
        if not t.key and any(x.key is None and (x.vb, x.ob) == (t.vb, t.ob) for x in out):
            continue
        names.add(t.name)
        out.append(t)
        if t.key:
            keys.add(t.key)
    return out
