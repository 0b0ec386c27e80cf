"""One layer."""

from torch import nn

from network.attention import Attn
from network.delta import GDN
from network.experts import MoE
from network.hyper import Hyper
from network.ngram import PLE


class Layer(nn.Module):
    def __init__(s, c, kind, ple=False):
        super().__init__()
        s.kind = kind
        if ple:
            s.ple = PLE(c)
        if kind == "linear_attention":
            s.linear_attn = GDN(c)
        else:
            s.self_attn = Attn(c)
        s.attn_hyper_connection = Hyper(c)
        s.mlp_hyper_connection = Hyper(c)
        s.mlp = MoE(c)

    def forward(s, S, ids, pos, valid, cs, mask, bvis, sparse, nkl):
        kl = None
        if hasattr(s, "ple"):
            S = s.ple(S, ids, pos)
        h = s.attn_hyper_connection
        x, n = h.mix(S)
        if s.kind == "linear_attention":
            y = s.linear_attn(x, pos)
        else:
            y, kl = s.self_attn(x, cs, mask, bvis, pos, sparse, nkl)
        S = h.add(S, y, h.inj(n))
        h = s.mlp_hyper_connection
        x, n = h.mix(S)
        y, lb, f = s.mlp(x, valid)
        return h.add(S, y, h.inj(n)), lb, f, kl
