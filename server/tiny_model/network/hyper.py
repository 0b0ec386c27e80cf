"""Hyper-connections: mixing streams into a block's input and its output back."""

import torch
import torch.nn.functional as F
from torch import nn

from network.linear import lin
from network.norm import Z


class Hyper(nn.Module):
    def __init__(s, c, inject=True):
        super().__init__()
        n = c["hc_count"] * c["hidden_size"]
        s.hc = c["hc_count"]
        s.hc_norm = Z(n, c["hidden_size"])
        s.input_mix_weight_down = lin(n, c["hc_lowrank"])
        s.input_mix_weight_up = lin(c["hc_lowrank"], n)
        if inject:
            s.block_inject_weight = lin(n, s.hc)

    def mix(s, S):
        n = s.hc_norm(S)
        g = s.input_mix_weight_up(F.silu(s.input_mix_weight_down(n) / s.hc)).float()
        return (torch.sigmoid(g) * n).unflatten(-1, (s.hc, -1)).mean(-2), n

    def inj(s, n):
        return 2 * torch.sigmoid(s.block_inject_weight(n).float() / s.hc)

    @staticmethod
    def add(S, y, inj):
        return S + (inj.unsqueeze(-1) * y.float().unsqueeze(-2)).flatten(-2).to(S.dtype)
