"""The model with its draft head, and their losses."""

import torch
import torch.nn.functional as F
from torch import nn

from network.config import EOT, TEXT
from network.hyper import Hyper
from network.layer import Layer
from network.linear import lin
from network.norm import Z


def head_loss(hyper, lm_head, S, target, w):
    """Weighted mean cross-entropy, and whether the target is the arg max."""
    x, _ = hyper.mix(S)
    l = lm_head(x).float()
    ce = torch.logsumexp(l, -1) - l.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return (ce * w).sum() / w.sum().clamp_min(1), l


class Mtp(nn.Module):
    def __init__(s, c):
        super().__init__()
        H, n = c["hidden_size"], c["hc_count"] * c["hidden_size"]
        s.fc_embedding = lin(H, H)
        s.fc_hidden = lin(H, H)
        s.pre_fc_norm_embedding = Z(H)
        s.pre_fc_norm_hidden = Z(n)
        s.layers = nn.ModuleList([Layer(c, "full_attention")])
        s.hyper_connection_mixer = Hyper(c, False)
        s.hc = c["hc_count"]

    def fuse(s, S, emb):
        E = s.fc_embedding(s.pre_fc_norm_embedding(emb)).float()
        h = s.pre_fc_norm_hidden(S).unflatten(-1, (s.hc, -1))
        return (E.unsqueeze(-2) + s.fc_hidden(h).float()).flatten(-2)


class Model(nn.Module):
    def __init__(s, c=TEXT, stream_dtype=torch.float32):
        super().__init__()
        s.c = c
        s.sd = stream_dtype
        H = c["hidden_size"]
        s.embed_tokens = nn.Embedding(c["vocab_size"], H)
        nn.init.normal_(s.embed_tokens.weight, std=0.5)
        s.layers = nn.ModuleList([Layer(c, t, i + 1 in c["ple_layer_ids"]) for i, t in enumerate(c["layer_types"])])
        s.hyper_connection_mixer = Hyper(c, False)
        s.lm_head = lin(H, c["vocab_size"], 0.5)
        s.mtp = Mtp(c)
        s._layer = lambda l, *a: l(*a)
        s._head = head_loss

    def compile_parts(s):
        for l in list(s.layers) + list(s.mtp.layers):
            l.compile(dynamic=False)  # equal layers share one compiled graph
        s._head = torch.compile(head_loss, dynamic=False)

    def forward(s, ids, doc, pos, w, sparse=True, nkl=0, mtp=True, logits=False):
        """ids, doc, pos [B,T] int64; w [B,T]: weight of predicting ids[:, t].  -> dict of losses (and logits)"""
        c = s.c
        B, T = ids.shape
        R = c["indexer_compress_ratio"]
        dev = ids.device
        i = torch.arange(T, device=dev)
        mask = (doc.unsqueeze(-1) == doc.unsqueeze(-2)) & (i[:, None] >= i[None, :])
        bvis = mask[..., R - 1 :: R].contiguous()
        rd = int(c["head_dim"] * c["partial_rotary_factor"])
        inv = 1.0 / (c["rope_parameters"]["rope_theta"] ** (torch.arange(0, rd, 2, device=dev).float() / rd))
        ang = pos.float().unsqueeze(-1) * inv
        cs = (ang.cos().unsqueeze(1), ang.sin().unsqueeze(1))
        valid = (w >= 0).float()
        S = s.embed_tokens(ids).repeat(1, 1, c["hc_count"]).to(s.sd)
        lbs, fs, kls = [], [], []
        for l in s.layers:
            S, lb, f, kl = s._layer(l, S, ids, pos, valid, cs, mask, bvis, sparse, nkl)
            lbs.append(lb)
            fs.append(f)
            if kl is not None:
                kls.append(kl)
        sh = lambda t, n, v=0: F.pad(t[:, n:], (0, n), value=v)
        same = lambda n: (sh(doc, n, -1) == doc).float()
        wp = w.clamp_min(0)
        loss, lg = s._head(s.hyper_connection_mixer, s.lm_head, S, sh(ids, 1), sh(wp, 1) * same(1))
        out = dict(loss=loss)
        if logits:
            out["logits"] = lg
            out["S"] = S
        if mtp:
            S2 = s.mtp.fuse(S, s.embed_tokens(sh(ids, 1, EOT))).to(s.sd)
            S2, lb, f, kl = s._layer(s.mtp.layers[0], S2, ids, pos, valid, cs, mask, bvis, sparse, nkl)
            lbs.append(lb)
            fs.append(f)
            kls.append(kl)
            out["mtp"], l2 = s._head(s.mtp.hyper_connection_mixer, s.lm_head, S2, sh(ids, 2), sh(wp, 2) * same(2))
            if logits:
                out["mtp_logits"] = l2
        out["lb"] = torch.stack(lbs).mean()
        out["kl"] = torch.stack(kls).mean()
        out["usage"] = torch.stack(fs)
        return out
