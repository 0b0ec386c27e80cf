"""Causal convolution."""

import torch
import torch.nn.functional as F


def causal_conv(x, w, pos, step=1):
    """Depthwise causal convolution that restarts where pos is 0.  x [B,T,D], w [D,1,K]."""
    K = w.shape[-1]
    y = x * w[:, 0, K - 1]
    for j in range(1, K):
        d = j * step
        sh = F.pad(x, (0, 0, d, 0))[:, : x.shape[1]]
        y = y + torch.where((pos >= d).unsqueeze(-1), sh, 0.0) * w[:, 0, K - 1 - j]
    return y
