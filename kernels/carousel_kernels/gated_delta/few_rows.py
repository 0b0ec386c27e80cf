"""The recurrent delta rule bound to its inputs, see `reference.recurrent`."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from carousel_kernels.constant import constant
from carousel_kernels.scratch import Scratch


class Recurrent:
    """A call computes `out` [T, h_v, dv] and the state after each row."""

    def __init__(
        self,
        scratch: Scratch,
        qkv: Tensor,
        a: Tensor,
        b: Tensor,
        decay: Tensor,
        dt_bias: Tensor,
        key_heads: int,
        key_dim: int,
    ) -> None:
        rows, heads, size = qkv.shape[0], decay.shape[0], 2 * key_heads * key_dim
        shared = heads // key_heads
        self.a, self.b, self.decay, self.bias = a, b, decay, dt_bias
        self.qk = qkv[:, :size].view(rows, 2, key_heads, 1, key_dim)
        self.length = scratch("delta.length", 2, key_heads, 1, 1)
        self.top = torch.tensor([key_dim**-0.5, 1.0]).view(2, 1, 1, 1)  # a query is scaled, a key is not
        self.inverse = self.length.expand(rows, 2, key_heads, shared, 1)
        self.turned = scratch("delta.qk", 2, key_heads, shared, key_dim)
        q, k = self.turned.view(rows, 2, heads, key_dim).unbind(1)
        self.q, self.k, self.k_row = q[:, :, None].unbind(0), k[..., None].unbind(0), k[:, :, None].unbind(0)
        self.v = qkv[:, size:].view(rows, heads, 1, -1).unbind(0)
        self.alpha, self.beta = scratch("delta.alpha", heads), scratch("delta.beta", heads)
        self.alphas, self.betas = (t.view(rows, heads, 1, 1).unbind(0) for t in (self.alpha, self.beta))
        width = self.v[0].shape[-1]
        self.delta = torch.empty(heads, 1, width)
        self.out = scratch("delta.out", heads, width)
        self.outs = self.out[:, :, None].unbind(0)

    def __call__(self, states: Sequence[Tensor], start: int) -> None:
        """states: the ring's states one by one, each [h_v, dk, dv]."""
        torch.linalg.vector_norm(self.qk, 2, -1, True, out=self.length)
        torch.hypot(self.length, constant(1e-3), out=self.length)
        torch.div(self.top, self.length, out=self.length)
        torch.mul(self.qk, self.inverse, out=self.turned)
        torch.exp(softplus(self.a + self.bias).mul_(self.decay), out=self.alpha)
        torch.sigmoid(self.b, out=self.beta)
        ring = len(states)
        state = states[(start - 1) % ring]
        for t, (q, k, v) in enumerate(zip(self.q, self.k, self.v, strict=True)):
            target = torch.mul(state, self.alphas[t], out=states[(start + t) % ring])
            torch.baddbmm(v, self.k_row[t], target, alpha=-1, out=self.delta).mul_(self.betas[t])
            target.baddbmm_(k, self.delta)
            torch.bmm(q, target, out=self.outs[t])
            state = target
