"""Write synthetic chats, see `chats/`.

python generate_data.py --docs 1000 --seed 1 --out sample.jsonl     documents (messages, tools, skill)
python generate_data.py --eval 40 --out eval.jsonl                  held-out evaluation set, 40 prompts a skill
python generate_data.py --selftest                                  renderer == jinja template, basic statistics
"""

import argparse
import random

import selftest
from chatfmt import dumps
from chats.mixture import eval_set, make_doc

if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--docs", type=int, default=0)
    ap.add_argument("--eval", type=int, default=0)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out")
    ap.add_argument("--selftest", action="store_true")
    a = ap.parse_args()
    if a.selftest:
        selftest.run()
    else:
        D = eval_set(a.eval) if a.eval else [make_doc(random.Random(f"{a.seed}-{i}")) for i in range(a.docs)]
        with open(a.out, "w") as f:
            for d in D:
                f.write(dumps(d) + "\n")
        print(len(D), "documents ->", a.out)
