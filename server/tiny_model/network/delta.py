"""Gated DeltaNet."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from network.conv import causal_conv
from network.linear import lin
from network.norm import GNorm


def gated_delta(q, k, v, g, beta, C=32):
    """Chunked gated delta rule, chunk states by a parallel scan.  q,k [B,h,T,dk] (q scaled), v [B,h,T,dv], g,beta [B,h,T]; fp32."""
    B, h, T, dk = q.shape
    N = T // C
    q, k, v = (t.unflatten(2, (N, C)) for t in (q, k, v))
    g = g.unflatten(2, (N, C)).cumsum(-1)
    beta = beta.unflatten(2, (N, C)).unsqueeze(-1)
    low = torch.ones(C, C, dtype=torch.bool, device=q.device).tril()
    dec = torch.where(low, (g.unsqueeze(-1) - g.unsqueeze(-2)), float("-inf")).exp()  # exp(G_i - G_j), i >= j
    kb = k * beta
    L = (kb @ k.transpose(-1, -2)) * dec
    i = torch.arange(C, device=q.device)
    X = torch.eye(C, device=q.device, dtype=q.dtype)
    b = 1
    while b < C:  # inverse of I + strict_lower(L), doubling the diagonal blocks
        m = ((i[:, None] // b == i[None, :] // b + 1) & (i[:, None] // (2 * b) == i[None, :] // (2 * b))).to(q.dtype)
        X = (X - L * m) if b == 1 else X - X @ (L * m) @ X
        b *= 2
    U = X @ torch.cat([v * beta, kb * g.exp().unsqueeze(-1)], -1)
    vn, kc = U.split([v.shape[-1], dk], -1)
    kh = (k * (g[..., -1:] - g).exp().unsqueeze(-1)).transpose(-1, -2)  # [.., dk, C]
    eye = torch.eye(dk, device=q.device, dtype=q.dtype)
    M = torch.cat([g[..., -1].exp()[..., None, None] * eye - kh @ kc, kh @ vn], -1)  # state map S -> M[:dk] S + M[dk:]
    d = 1
    while d < N:
        new = M[:, :, d:, :, :dk] @ M[:, :, :-d]
        add = F.pad(M[:, :, d:, :, dk:], (dk, 0))
        M = torch.cat([M[:, :, :d], new + add], 2)
        d *= 2
    S = F.pad(M[:, :, :-1, :, dk:], (0, 0, 0, 0, 1, 0))  # state before each chunk
    vn = vn - kc @ S
    o = (q * g.exp().unsqueeze(-1)) @ S + ((q @ k.transpose(-1, -2)) * dec) @ vn
    return o.flatten(2, 3)


class GDN(nn.Module):
    def __init__(s, c):
        super().__init__()
        H = c["hidden_size"]
        s.kh, s.vh, s.dk, s.dv = (
            c["linear_num_key_heads"],
            c["linear_num_value_heads"],
            c["linear_key_head_dim"],
            c["linear_value_head_dim"],
        )
        cd = 2 * s.kh * s.dk + s.vh * s.dv
        s.in_proj_qkv = lin(H, cd)
        s.in_proj_z = lin(H, s.vh * s.dv)
        s.in_proj_b = lin(H, s.vh)
        s.in_proj_a = lin(H, s.vh, 0.5)
        s.conv1d = nn.Module()
        s.conv1d.weight = nn.Parameter(torch.randn(cd, 1, c["linear_conv_kernel_dim"]) * 0.5)
        s.A_log = nn.Parameter(torch.empty(s.vh).uniform_(1, 16).log())
        dt = torch.exp(torch.rand(s.vh) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        s.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        s.norm = GNorm(s.dv)
        s.out_proj = lin(s.vh * s.dv, H, 0.5)

    def forward(s, x, pos):
        B, T, _ = x.shape
        y = F.silu(causal_conv(s.in_proj_qkv(x).float(), s.conv1d.weight, pos))
        with torch.autocast(x.device.type, enabled=False):
            q, k, v = y.split([s.kh * s.dk, s.kh * s.dk, s.vh * s.dv], -1)
            rep = s.vh // s.kh
            hd = lambda t, n: t.unflatten(-1, (n, -1)).transpose(1, 2)
            l2 = lambda t: t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6)
            q, k, v = l2(hd(q, s.kh)) * s.dk**-0.5, l2(hd(k, s.kh)), hd(v, s.vh)
            q, k = q.repeat_interleave(rep, 1), k.repeat_interleave(rep, 1)
            ba = F.linear(x.float(), torch.cat([s.in_proj_b.weight, s.in_proj_a.weight]))
            b, a = ba.transpose(1, 2).chunk(2, 1)
            g = -s.A_log.exp()[:, None] * F.softplus(a + s.dt_bias[:, None])
            g = torch.where((pos == 0).unsqueeze(1), -60.0, g)  # forget everything at a document start
            o = gated_delta(q, k, v, g, torch.sigmoid(b)).transpose(1, 2)
            o = s.norm.weight * (o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + 1e-6))
        return s.out_proj((o * torch.sigmoid(s.in_proj_z(x).float()).unflatten(-1, (s.vh, s.dv))).flatten(-2))
