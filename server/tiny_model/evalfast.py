"""Teacher-forced exact match of the last answer of every document: equals greedy decoding giving exactly that answer."""

import collections

import torch

from data import Encoder, pack


@torch.no_grad()
def run(m, tok, docs, device, B=16, T=2048, sparse=True, autocast=True):
    enc = Encoder(tok)
    it = iter([(*enc.doc(d, True), i) for i, d in enumerate(docs)])
    left = collections.deque(x for x in it if len(x[0]) <= T)
    R = collections.defaultdict(lambda: [0, 0, 0, 0, 0, 0])
    bad = []
    use = 0
    while left:

        def take():
            while left:
                yield left.popleft()

        spare = []
        src = take()

        def gen():
            for x in src:
                spare.append(x)
                yield x

        ids, doc, pos, w, spans = pack(gen(), B, T, enc.eot)
        done = {t for *_, t in spans}
        left.extendleft(reversed([x for x in spare if x[2] not in done]))
        x = [torch.from_numpy(a).to(device) for a in (ids, doc, pos)]
        wt = torch.from_numpy(w).to(device).float() / 10
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
            o = m(x[0], x[1], x[2], wt, sparse=sparse, nkl=0, logits=True)
        p, q = o["logits"].argmax(-1).cpu(), o["mtp_logits"].argmax(-1).cpu()
        use = use + o["usage"].cpu()
        for row, a, L, tag in spans:
            ts = [t for t in range(a, a + L) if w[row, t] == 10]
            y = torch.from_numpy(ids[row, ts])
            g = p[row, [t - 1 for t in ts]]
            ok = g == y
            r = R[docs[tag]["skill"]]
            acc = (
                q[row, [t - 2 for t in ts[1:]]] == g[1:]
            )  # draft for t made at t-2, compared with the main model's choice
            r[0] += 1
            r[1] += int(ok.all())
            r[2] += len(ts)
            r[3] += int(ok.sum())
            r[4] += len(ts) - 1
            r[5] += int(acc.sum())
            if not ok.all():
                bad.append(
                    (
                        tag,
                        enc.t.decode(y.tolist(), skip_special_tokens=False),
                        enc.t.decode(g.tolist(), skip_special_tokens=False),
                    )
                )
    res = {
        k: dict(n=r[0], exact=r[1] / r[0], token_acc=r[3] / r[2], mtp_accept=r[5] / max(1, r[4])) for k, r in R.items()
    }
    t = [sum(r[i] for r in R.values()) for i in range(6)]
    res["ALL"] = dict(n=t[0], exact=t[1] / t[0], token_acc=t[3] / t[2], mtp_accept=t[5] / t[4])
    return res, bad, use
