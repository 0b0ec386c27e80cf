"""Routed and shared experts."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from network.linear import lin


class Experts(nn.Module):
    def __init__(s, E, I, H):
        super().__init__()
        s.gate_up_proj = nn.Parameter(torch.randn(E, 2 * I, H) / math.sqrt(H))
        s.down_proj = nn.Parameter(torch.randn(E, H, I) / math.sqrt(I) * 0.5)


class Shared(nn.Module):
    def __init__(s, H, I):
        super().__init__()
        s.gate_proj = lin(H, I)
        s.up_proj = lin(H, I)
        s.down_proj = lin(I, H, 0.5)

    def forward(s, x):
        return s.down_proj(F.silu(s.gate_proj(x)) * s.up_proj(x))


class MoE(nn.Module):
    """All experts are computed for all tokens and weighted by the (mostly zero) routing weights: simple and fast at this size."""

    def __init__(s, c):
        super().__init__()
        H = c["hidden_size"]
        s.E, s.I, s.k = c["num_experts"], c["moe_intermediate_size"], c["num_experts_per_tok"]
        s.gate = lin(H, s.E)
        s.experts = Experts(s.E, s.I, H)
        s.shared_expert = Shared(H, c["shared_expert_intermediate_size"])
        s.shared_expert_gate = lin(H, 1)

    def forward(s, x, valid):
        with torch.autocast(x.device.type, enabled=False):
            p = torch.softmax(F.linear(x.float(), s.gate.weight), -1)
        keep = ((p.unsqueeze(-2) > p.unsqueeze(-1)).sum(-1) < s.k).float()  # rank of every expert < k
        w = p * keep
        w = w / w.sum(-1, keepdim=True)
        h = F.linear(x, s.experts.gate_up_proj.flatten(0, 1)).unflatten(-1, (s.E, 2, s.I))
        h = F.silu(h[..., 0, :]) * h[..., 1, :] * w.unsqueeze(-1).to(h.dtype)
        y = h.flatten(-2) @ s.experts.down_proj.transpose(1, 2).reshape(s.E * s.I, -1).to(h.dtype)
        n = valid.sum().clamp_min(1)
        f = (keep * valid.unsqueeze(-1)).sum((0, 1)) / (n * s.k)
        P = (p * valid.unsqueeze(-1)).sum((0, 1)) / n
        return (
            y.float() + torch.sigmoid(s.shared_expert_gate(x).float()) * s.shared_expert(x).float(),
            s.E * (f.detach() * P).sum(),
            f.detach(),
        )
