"""Check and evaluate an exported model on CPU.

  python evaluate.py MODEL --load            transformers loads it cleanly; logits equal the training module (fp32)
  python evaluate.py MODEL --fast 40         teacher-forced exact match and MTP acceptance per skill (equals greedy decoding)
  python evaluate.py MODEL --generate 2      greedy generation through transformers, compared with the expected answers
  python evaluate.py MODEL --chat FILE       greedy answers to the chats in FILE (JSON list of {"messages","tools"})
Held-out prompts come from chats.mixture.eval_set."""

import argparse
import json
import os
import time

import torch
from safetensors.torch import load_file

import evalfast
from chatfmt import assistant_text
from chats.mixture import eval_set
from network.checkpoint import import_state
from network.model import Model

ap = argparse.ArgumentParser()
ap.add_argument("model")
ap.add_argument("--load", action="store_true")
ap.add_argument("--fast", type=int, default=0)
ap.add_argument("--generate", type=int, default=0)
ap.add_argument("--chat")
ap.add_argument("--dtype", default="float32")
ap.add_argument("--out")
ap.add_argument("--skills")
ap.add_argument(
    "--seen",
    action="store_true",
    help="with --fast: the training distribution instead of the held-out names, pairs and words",
)
ap.add_argument("--seed", type=int, default=777)
a = ap.parse_args()
R = {}


def hf():
    from transformers import AutoTokenizer, Qwen4ExpForCausalLM

    m, info = Qwen4ExpForCausalLM.from_pretrained(a.model, dtype=getattr(torch, a.dtype), output_loading_info=True)
    return m.eval(), AutoTokenizer.from_pretrained(a.model), info


def mine():
    m = Model()
    import_state(m, load_file(os.path.join(a.model, "model.safetensors")))
    return m.eval()


def answer(m, tok, messages, tools, n=400):
    ids = tok.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    with torch.no_grad():
        o = m.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)
    o = o[0, ids.shape[1] :].tolist()
    end = o[-1] in m.generation_config.eos_token_id
    return tok.decode(o[:-1] if end else o, skip_special_tokens=False), end


if a.load:
    m, tok, info = hf()
    mm = mine()
    print(
        "missing",
        sorted(info["missing_keys"]),
        "unexpected",
        sorted(info["unexpected_keys"])[:3],
        len(info["unexpected_keys"]),
        "mismatched",
        info.get("mismatched_keys"),
    )
    docs = [
        d
        for d in eval_set(1, 5)
        if d["skill"] in ("tool_multi_turn", "long_context", "memory", "copy_long", "tool_call_parallel", "facts")
    ]
    for d in docs:
        ids = tok.apply_chat_template(d["messages"], tools=d["tools"], return_tensors="pt", return_dict=False)
        L = ids.shape[1]
        P = -(-L // 32) * 32
        x = torch.nn.functional.pad(ids, (0, P - L), value=3024)
        z = torch.zeros_like(x)
        with torch.no_grad():
            h = m(ids, use_cache=False).logits[0].float()
            o = mm(x, z, torch.arange(P)[None], torch.ones(1, P), logits=True, sparse=True)["logits"][0, :L]
        e = (h - o).abs().amax(-1)
        print(
            d["skill"],
            L,
            "max |dlogit|",
            f"{e.max():.2e}",
            "within budget",
            f"{e[:258].max():.2e}",
            "argmax equal",
            f"{(h.argmax(-1) == o.argmax(-1)).float().mean():.4f}",
            "logit std",
            f"{h.std():.2f}",
        )
        R.setdefault("load", []).append([d["skill"], L, e.max().item()])
if a.fast:
    t = time.time()
    r, bad, use = evalfast.run(
        mine(),
        os.path.join(a.model, "tokenizer.json"),
        [d for d in eval_set(a.fast, a.seed, not a.seen) if not a.skills or d["skill"] in a.skills.split(",")],
        "cpu",
        B=2,
        autocast=False,
    )
    R["fast"] = r
    R["usage"] = use.tolist()
    for k, v in r.items():
        print(f"{k:24s} n {v['n']:4d}  exact {v['exact']:.3f}  token {v['token_acc']:.4f}  mtp {v['mtp_accept']:.3f}")
    for i, u in enumerate((use / use.sum(-1, keepdim=True)).tolist()):
        print("layer", i if i < 8 else "mtp", " ".join(f"{100 * x:.1f}" for x in u))
    print(f"{time.time() - t:.0f} s")
if a.generate:
    m, tok, _ = hf()
    S = {}
    for d in eval_set(a.generate, a.seed + 1):
        if a.skills and d["skill"] not in a.skills.split(","):
            continue
        t = time.time()
        got, end = answer(m, tok, d["messages"][:-1], d["tools"])
        want = assistant_text(d["messages"][-1])
        ok = got == want
        if d["skill"] == "story":
            ok = end and len(got) > 80 and got.endswith("ever after.")
        s = S.setdefault(d["skill"], [0, 0])
        s[0] += ok
        s[1] += 1
        if not ok:
            print(
                "DIFF",
                d["skill"],
                repr(d["messages"][-2]["content"][-120:]),
                "WANT",
                repr(want[:160]),
                "GOT",
                repr(got[:160]),
                flush=True,
            )
    R["generate"] = S
    print(
        {k: f"{v[0]}/{v[1]}" for k, v in S.items()},
        "total",
        sum(v[0] for v in S.values()),
        "/",
        sum(v[1] for v in S.values()),
    )
if a.chat:
    m, tok, _ = hf()
    for c in json.load(open(a.chat)):
        h = []
        for x in c["messages"]:
            h.append(x)
            if x["role"] == "user" or (x["role"] == "tool"):
                g, end = answer(m, tok, h, c.get("tools"))
                print(f"{x['role']}: {x['content']}\n  -> {g}{'' if end else ' [no end]'}", flush=True)
                h.append({"role": "assistant", "content": g})
        print("---")
if a.out:
    json.dump(R, open(a.out, "w"), indent=1)
