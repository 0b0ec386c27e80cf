"""Train the tiny model.  One command:  python train.py --tok TOK_DIR --out OUT_DIR --steps 12000

Data is made on the fly by background workers from (seed, step).  AdamW for embeddings, router, norms and small projections,
Muon for the large matrices.  --stop-at/--state/--resume split a run over several commands (same result as one run)."""

import argparse
import json
import os
import time

os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
import torch
from safetensors.torch import save_file

import evalfast
from chats.mixture import eval_set
from data import batches
from network.checkpoint import export_state, import_state
from network.model import Model


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tok", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, default=12000)
    ap.add_argument("--stop-at", type=int, default=10**9)
    ap.add_argument("--max-seconds", type=float, default=1e9)
    ap.add_argument("--rows", type=int, default=32)
    ap.add_argument("--row-len", type=int, default=2048)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--warmup", type=int, default=200)
    ap.add_argument("--cooldown", type=float, default=0.4)
    ap.add_argument("--dense-until", type=float, default=0.2, help="fraction of steps without sparse selection")
    ap.add_argument("--kl-rows", type=int, default=4)
    ap.add_argument("--mtp-weight", type=float, default=0.3)
    ap.add_argument("--lb-weight", type=float, default=0.005)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--workers", type=int, default=12)
    ap.add_argument("--state")
    ap.add_argument("--init", help="start from the weights of this .safetensors (list with commas)")
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--stream-bf16", action="store_true")
    ap.add_argument("--eval-n", type=int, default=24)
    ap.add_argument("--eval-every", type=int, default=3000)
    ap.add_argument("--profile", type=int, default=0, help="print a kernel profile of this step")
    ap.add_argument(
        "--data",
        default="1",
        choices=["1", "2"],
        help="2: also arbitrary names, words and code (see chats.draws.ROBUST)",
    )
    a = ap.parse_args()
    os.environ["TINY_DATA"] = a.data
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    os.makedirs(a.out, exist_ok=True)
    t00 = time.time()
    tok = os.path.join(a.tok, "tokenizer.json")
    m = Model(stream_dtype=torch.bfloat16 if a.stream_bf16 else torch.float32).to(dev)
    if a.init:
        from safetensors.torch import load_file

        T = {}
        for f in a.init.split(","):
            T |= load_file(f)
        import_state(m, T)

    class Muon:
        """Momentum orthogonalised by Newton-Schulz; matrices of equal shape are handled in one batch."""

        def __init__(s, ps, wd):
            s.g = {}
            s.wd = wd
            for p in ps:
                s.g.setdefault(tuple(p.shape[-2:]), []).append(p)
            s.buf = {
                k: torch.zeros(sum(p.numel() // (k[0] * k[1]) for p in v), *k, device=v[0].device)
                for k, v in s.g.items()
            }

        @torch.no_grad()
        def step(s, lr):
            for k, ps in s.g.items():
                G = torch.cat([p.grad.reshape(-1, *k) for p in ps])
                b = s.buf[k]
                b.lerp_(G, 0.05)
                X = G.lerp(b, 0.95).bfloat16()
                tr = k[0] > k[1]
                X = X.mT if tr else X
                X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
                for _ in range(5):
                    A = X @ X.mT
                    X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
                X = (X.mT if tr else X).float() * (0.2 * max(k) ** 0.5)
                i = 0
                for p in ps:
                    n = p.numel() // (k[0] * k[1])
                    p.mul_(1 - lr * s.wd).sub_(X[i : i + n].view_as(p), alpha=lr)
                    i += n

    big = (
        "in_proj_qkv",
        "in_proj_z",
        "out_proj",
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "experts.gate_up_proj",
        "experts.down_proj",
        "shared_expert.gate_proj",
        "shared_expert.up_proj",
        "shared_expert.down_proj",
        "fc_embedding",
        "fc_hidden",
        "key_proj",
        "value_proj",
    )
    mu = [p for n, p in m.named_parameters() if any(b in n for b in big)]
    ids_mu = {id(p) for p in mu}
    rest = [(n, p) for n, p in m.named_parameters() if id(p) not in ids_mu]
    muon = Muon(mu, 0.05)
    adam = torch.optim.AdamW(
        [
            dict(params=[p for n, p in rest if p.dim() >= 2 and "embed" not in n], weight_decay=0.02),
            dict(params=[p for n, p in rest if p.dim() < 2 or "embed" in n], weight_decay=0.0),
        ],
        lr=a.lr,
        betas=(0.9, 0.95),
        eps=1e-10,
        fused=dev == "cuda",
    )
    step = 0
    logf = open(os.path.join(a.out, "log.jsonl"), "a")
    if a.state and os.path.exists(a.state):
        st = torch.load(a.state, map_location=dev, weights_only=False)
        m.load_state_dict(st["m"])
        adam.load_state_dict(st["adam"])
        [muon.buf[k].copy_(v) for k, v in st["muon"].items()]
        step = st["step"]
        print("resumed at", step, flush=True)
    if not a.no_compile:
        from torch._dynamo import config as dc

        dc.recompile_limit = 64
        m.compile_parts()

    def save(final=False):
        sd = export_state(m)
        names = sorted(sd)
        shards = [{}, {}]
        size = [0, 0]
        for n in sorted(names, key=lambda n: -sd[n].numel()):
            i = size[0] > size[1]
            shards[i][n] = sd[n]
            size[i] += sd[n].numel() * sd[n].element_size()
        for i, s in enumerate(shards):
            f = os.path.join(a.out, f"weights-{i}.safetensors")
            save_file(s, f + ".tmp", metadata={"format": "pt"})
            os.replace(f + ".tmp", f)
        if a.state:
            torch.save(dict(m=m.state_dict(), adam=adam.state_dict(), muon=muon.buf, step=step), a.state)

    E = eval_set(a.eval_n)
    last = min(a.steps, a.stop_at)
    tl = time.time()
    tok_s = 0
    acc = {}
    for ids, doc, pos, w in batches(tok, a.seed, a.rows, a.row_len, step, last, a.workers, dev):
        if a.profile and step == a.profile:
            torch.cuda.synchronize()
            prof = torch.profiler.profile()
            prof.__enter__()
        if a.profile and step == a.profile + 3:
            torch.cuda.synchronize()
            prof.__exit__(None, None, None)
            print(
                prof.key_averages().table(sort_by="self_cuda_time_total", row_limit=28, max_name_column_width=70),
                torch.cuda.max_memory_allocated() >> 20,
                "MiB",
                flush=True,
            )
        f = step / a.steps
        lr = a.lr * min(1, (step + 1) / a.warmup) * min(1, max(0.01, (1 - f) / a.cooldown))
        with torch.autocast(dev, torch.bfloat16, enabled=dev == "cuda"):
            o = m(ids, doc, pos, w, sparse=f >= a.dense_until, nkl=a.kl_rows)
        mw = a.mtp_weight
        loss = o["loss"] + mw * o["mtp"] + a.lb_weight * o["lb"] + 0.3 * o["kl"]
        loss.backward()
        gn = torch.nn.utils.clip_grad_norm_([p for _, p in rest], 1.0)
        for g in adam.param_groups:
            g["lr"] = lr
        adam.step()
        muon.step(lr)
        m.zero_grad(set_to_none=True)
        step += 1
        tok_s += ids.numel()
        for k in ("loss", "mtp", "lb", "kl"):
            acc[k] = acc.get(k, 0) + o[k].detach()
        if step == 1:
            print(
                f"first step after {time.time() - t00:.1f} s, packing {float((w >= 0).float().mean()):.3f}, answer share {float((w == 1).float().mean()):.3f}",
                flush=True,
            )
        if step % 50 == 0 or step == last:
            n = 50 if step % 50 == 0 else max(1, step % 50)
            d = dict(
                step=step,
                lr=lr,
                **{k: float(v) / n for k, v in acc.items()},
                grad=float(gn),
                usage=[float(o["usage"].min()), float(o["usage"].max())],
                t=round(time.time() - t00, 1),
            )
            acc = {}
            logf.write(json.dumps(d) + "\n")
            logf.flush()
            if step % 250 == 0 or step == last or step <= 100:
                print(
                    {k: (round(v, 4) if isinstance(v, float) else v) for k, v in d.items()},
                    f"{tok_s / (time.time() - tl) / 1e3:.0f} ktok/s",
                    flush=True,
                )
            tok_s = 0
            tl = time.time()
        stop = time.time() - t00 > a.max_seconds
        if step % a.eval_every == 0 or step == last or stop:
            save()
            with torch.compiler.set_stance("force_eager"):
                r, bad, use = evalfast.run(
                    m, tok, E, dev, B=a.rows, T=a.row_len, sparse=f >= a.dense_until, autocast=dev == "cuda"
                )
                json.dump(
                    dict(step=step, eval=r, usage=use.tolist(), bad=bad[:400]),
                    open(os.path.join(a.out, "eval.json"), "w"),
                    ensure_ascii=False,
                )
            print(
                "eval",
                step,
                {k: f"{v['exact']:.2f}" for k, v in r.items()},
                {k: round(v, 3) for k, v in r["ALL"].items()},
                flush=True,
            )
            tl = time.time()
        if stop:
            break
    print(f"done at step {step}, {time.time() - t00:.1f} s", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
