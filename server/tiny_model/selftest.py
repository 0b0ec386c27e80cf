"""The chat generator against the template: the fast renderer equals it, faulty chats are refused, counts for each skill."""

import collections
import json
import random
import time

from jinja2.sandbox import ImmutableSandboxedEnvironment

from chatfmt import TEMPLATE, render
from chats.mixture import eval_set, make_doc


def template():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda x, **k: json.dumps(x, ensure_ascii=False)

    def fail(m):
        raise ValueError(m)

    env.globals["raise_exception"] = fail
    return env.from_string(TEMPLATE.read_text())


def run(count=3000):
    t = template()
    c = collections.Counter()
    L = collections.Counter()
    t0 = time.time()
    docs = [make_doc(random.Random(f"1-{i}"), i % 7 == 0) for i in range(count)]
    dt = time.time() - t0
    for d in docs:
        x, y = (
            render(d["messages"], d["tools"]),
            t.render(messages=d["messages"], tools=d["tools"], add_generation_prompt=False),
        )
        assert x == y, (x, y)
        x, y = (
            render(d["messages"][:-1], d["tools"], True),
            t.render(messages=d["messages"][:-1], tools=d["tools"], add_generation_prompt=True),
        )
        assert x == y, (x, y)
        c[d["skill"].split(":")[0]] += 1
        L[d["skill"].split(":")[0]] += len(x)
    for bad in (
        [{"role": "system", "content": "x"}],
        [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}],
        [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}],
        [],
    ):
        try:
            t.render(messages=bad)
        except ValueError:
            continue
        raise SystemExit("no error for " + repr(bad))
    eval_set(2)
    print(f"ok: {count} documents, {count / dt:.0f}/s;", {k: (v, L[k] // v) for k, v in c.most_common()})
