"""Sparse attention and its indexer."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from network.linear import lin
from network.norm import Z
from network.rope import rope


class Indexer(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.n, s.d = c["indexer_n_heads"], c["indexer_head_dim"]
        s.R = c["indexer_compress_ratio"]
        s.top = c["indexer_budget"] // s.R
        s.index_qk_proj = lin(c["hidden_size"], (s.n + 1) * s.d)
        s.q_layernorm = Z(s.d)
        s.k_layernorm = Z(s.d)

    def forward(s, x, cs, margin=False):
        """Block scores [B, T, T/R]; with margin also how far the best head of a block is below a small positive margin
        (training keeps it above, so that few blocks tie at exactly 0)."""
        y = s.index_qk_proj(x).float()
        q = s.q_layernorm(y[..., : s.n * s.d].unflatten(-1, (s.n, s.d))).transpose(1, 2)
        k = s.k_layernorm(y[..., s.n * s.d :].unflatten(1, (-1, s.R)).mean(2))
        q = rope(q, cs)
        k = rope(k, (cs[0][:, 0, :: s.R], cs[1][:, 0, :: s.R]))
        a = q @ k.transpose(-1, -2).unsqueeze(1)
        score = torch.relu(a).sum(1) / math.sqrt(s.d)
        return (score, torch.relu(0.5 - a.amax(1))) if margin else score


class Attn(nn.Module):
    def __init__(s, c):
        super().__init__()
        H = c["hidden_size"]
        s.h, s.kv, s.d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        s.q_proj = lin(H, s.h * s.d * 2)
        s.k_proj = lin(H, s.kv * s.d)
        s.v_proj = lin(H, s.kv * s.d)
        s.o_proj = lin(s.h * s.d, H, 0.5)
        s.q_norm = Z(s.d)
        s.k_norm = Z(s.d)
        s.indexer = Indexer(c)

    def forward(s, x, cs, mask, bvis, pos, sparse, nkl):
        """mask [B,T,T] same document and causal; bvis [B,T,Nb] complete visible blocks; nkl rows get the indexer loss."""
        B, T, _ = x.shape
        qg = s.q_proj(x).unflatten(-1, (s.h, 2, s.d))
        gate = qg[..., 1, :]
        q = rope(s.q_norm(qg[..., 0, :]).transpose(1, 2), cs)
        k = rope(s.k_norm(s.k_proj(x).unflatten(-1, (s.kv, s.d))).transpose(1, 2), cs)
        dt = torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else torch.float32
        v = s.v_proj(x).unflatten(-1, (s.kv, s.d)).transpose(1, 2).to(dt)
        rep = s.h // s.kv
        q = q.to(dt)
        k = k.to(dt).repeat_interleave(rep, 1)
        v = v.repeat_interleave(rep, 1)
        R = s.indexer.R
        xi = x.detach()
        full = mask
        if sparse:
            with torch.no_grad():
                sc = torch.where(bvis, s.indexer(xi, cs), -1.0)
                top = min(s.indexer.top, sc.shape[-1])
                sel = torch.zeros_like(bvis).scatter_(-1, sc.topk(top, -1).indices, True) & bvis
                i = torch.arange(T, device=x.device)
                tail = i[:, None] // R == i[None, :] // R
                mask = mask & (sel.repeat_interleave(R, -1) | (tail & ((pos % R) != R - 1).unsqueeze(-1)))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(1))
        kl = x.new_zeros((), dtype=torch.float32)
        if nkl:
            with torch.no_grad():
                a = (q[:nkl] @ k[:nkl].transpose(-1, -2)).float() * s.d**-0.5
                a = (
                    torch.where(full[:nkl].unsqueeze(1), a, float("-inf"))
                    .softmax(-1)
                    .mean(1)
                    .unflatten(-1, (-1, R))
                    .sum(-1)
                )
                vis = bvis[:nkl]
                a = torch.where(vis, a, 0.0)
                tot = a.sum(-1)
                a = a / tot.clamp_min(1e-6).unsqueeze(-1)
                ok = (vis.sum(-1) > 4).float() * tot
            sc, mg = s.indexer(xi[:nkl], (cs[0][:nkl], cs[1][:nkl]), True)
            mg = (mg * vis).sum() / vis.sum().clamp_min(1)
            sc = torch.where(vis, sc, -1e4)
            kl = 0.2 * mg + (
                (a * (a.clamp_min(1e-8).log() - sc.log_softmax(-1))).sum(-1) * ok
            ).sum() / ok.sum().clamp_min(1)
        o = o.transpose(1, 2).float() * torch.sigmoid(gate.float())
        return s.o_proj(o.flatten(-2)), kl
