"""N-gram embeddings."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from network.config import EOT
from network.conv import causal_conv
from network.linear import lin
from network.norm import Z


def ngram_constants(c, p=0):
    prime = lambda v: v > 1 and all(v % d for d in range(2, math.isqrt(v) + 1))
    heads = (c["ngram_size"] - 1) * c["heads_per_ngram"]
    sizes, v = [], c["ngram_vocab_size_base"] - 1
    while len(sizes) < (p + 1) * heads:
        v += 1
        if prime(v):
            sizes.append(v)
    sizes = sizes[p * heads :]
    offs = [sum(sizes[:i]) for i in range(heads)]
    div = c["make_ngram_vocab_size_divisible_by"]
    rows = -(-sum(sizes) // div) * div
    M, G = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(v):
        v = (v + G) & M
        v = ((v ^ (v >> 30)) * 0xBF58476D1CE4E5B9) & M
        v = ((v ^ (v >> 27)) * 0x94D049BB133111EB) & M
        return v ^ (v >> 31)

    half = max(1, (((1 << 63) - 1) // c["vocab_size"]) // 2)
    base = c["seed"] + 10007 * p
    return [2 * (mix((base + G * (i + 1)) & M) % half) + 1 for i in range(c["ngram_size"])], sizes, offs, rows


class NGram(nn.Module):
    def __init__(s, c):
        super().__init__()
        m, sz, of, rows = ngram_constants(c)
        s.hp = c["heads_per_ngram"]
        s.parts = c["split_ngram_parts"]
        for n, v in (("layer_multipliers", m), ("ngram_heads_vocab_sizes", sz), ("ngram_heads_offsets", of)):
            s.register_buffer(n, torch.tensor(v, dtype=torch.long))
        s.table = nn.Parameter(torch.randn(rows, c["ple_embed_dim"] // len(sz)) * 0.5)

    def forward(s, ids, pos):
        e = EOT
        p1 = torch.where(pos >= 1, F.pad(ids, (1, 0), value=e)[:, :-1], e)
        p2 = torch.where((pos >= 2) & (p1 != e), F.pad(ids, (2, 0), value=e)[:, :-2], e)
        m = s.layer_multipliers
        h2 = (ids * m[0]) ^ (p1 * m[1])
        h3 = h2 ^ (p2 * m[2])
        h = torch.cat([h2.unsqueeze(-1).expand(-1, -1, s.hp), h3.unsqueeze(-1).expand(-1, -1, s.hp)], -1)
        return F.embedding(h % s.ngram_heads_vocab_sizes + s.ngram_heads_offsets, s.table).flatten(-2)


class PLE(nn.Module):
    def __init__(s, c):
        super().__init__()
        H, n = c["hidden_size"], c["hc_count"]
        s.H, s.n, s.dil = H, n, c["ngram_size"]
        s.ple_embedding = NGram(c)
        s.key_proj = lin(c["ple_embed_dim"], n * H)
        s.value_proj = lin(c["ple_embed_dim"], H)
        s.norm_key = Z(n * H, H)
        s.norm_query = Z(n * H, H)
        s.norm_conv = Z(n * H, H)
        s.conv1d = nn.Module()
        s.conv1d.weight = nn.Parameter(torch.randn(n * H, 1, c["ple_conv_kernel_size"]) * 0.05)

    def forward(s, S, ids, pos):
        e = s.ple_embedding(ids, pos)
        k = s.norm_key(s.key_proj(e)).unflatten(-1, (s.n, s.H))
        q = s.norm_query(S).unflatten(-1, (s.n, s.H))
        v = s.value_proj(e).float()
        a = (k * q).sum(-1, keepdim=True) / math.sqrt(s.H)
        a = a.abs().clamp_min(1e-6).sqrt() * a.sign()
        V = (torch.sigmoid(a) * v.unsqueeze(-2)).flatten(-2)
        # the published convolution does not restart at <|endoftext|>; a packed document start is a new sequence
        return (S + V + F.silu(causal_conv(s.norm_conv(V), s.conv1d.weight, pos, s.dil))).to(S.dtype)
