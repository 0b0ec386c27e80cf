"""The gated delta rule, recurrent and chunked: the definition, and the CPU backend."""

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from carousel_kernels.constant import constant

CHUNK = 64  # rows of one chunk of the chunked form


def recurrent(
    qkv: Tensor, a: Tensor, b: Tensor, decay: Tensor, dt_bias: Tensor, states: Tensor, start: int, key_heads: int
) -> Tensor:
    """The rule, row by row; the state after each of the last R rows stays readable.

        q, k = l2norm(q) / sqrt(dk), l2norm(k), value head h using key head h // (h_v / h_k)
        alpha = exp(decay * softplus(a + dt_bias)),  beta = sigmoid(b)
        S <- alpha S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q

    qkv [T, 2 * h_k * dk + h_v * dv], after convolution and silu; a, b [T, h_v]; decay = -exp(A_log) [h_v] < 0;
    dt_bias [h_v]; states [R, h_v, dk, dv] float32, the state after position p at p % R, updated in place. The state
    before `start` is read at (start - 1) % R, which must be zero for start 0. Returns o [T, h_v, dv].
    """
    rows, ring = qkv.shape[0], states.shape[0]
    heads, dk, dv = states.shape[1:]
    q, k, v = _heads(qkv, states, key_heads)
    q, k, v = q.view(rows, heads, 1, dk), k.view(rows, heads, dk, 1), v.view(rows, heads, 1, dv)
    alpha = softplus(a + dt_bias).mul_(decay).exp_().view(rows, heads, 1, 1)
    beta = torch.sigmoid(b).view(rows, heads, 1, 1)
    out = []
    state = states[(start - 1) % ring]
    for t in range(rows):
        target = states[(start + t) % ring]
        torch.mul(state, alpha[t], out=target)
        key = k[t]
        delta = torch.sub(v[t], torch.bmm(key.mT, target)).mul_(beta[t])
        target.baddbmm_(key, delta)
        out.append(torch.bmm(q[t], target))
        state = target
    return (out[0] if rows == 1 else torch.cat(out)).view(rows, heads, dv)


def chunked(
    qkv: Tensor, a: Tensor, b: Tensor, decay: Tensor, dt_bias: Tensor, states: Tensor, start: int, key_heads: int
) -> Tensor:
    """The same rule for many rows, 64 at a time; arguments and result as `recurrent`.

    Only the state after the last row is written, so no row can be taken back afterwards.
    """
    rows = qkv.shape[0]
    spare = -rows % CHUNK
    # a padded row has beta 0 and alpha 1: it changes nothing
    q, k, v = (_chunks(pad(t, (0, 0, 0, 0, 0, spare))) for t in _heads(qkv, states, key_heads))
    log_alpha = _chunks(pad(decay * softplus(a + dt_bias), (0, 0, 0, spare)))  # [h, N, C]
    beta = _chunks(pad(torch.sigmoid(b), (0, 0, 0, spare)))[..., None]
    total = log_alpha.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=qkv.device).tril_()
    fade = (total[..., :, None] - total[..., None, :]).masked_fill_(~lower, -torch.inf).exp_()  # alpha_j+1 .. alpha_i
    grown = total.exp()[..., None]
    k_beta = k * beta
    # (I + strictly lower(beta k k^T fade)) [U | W] = [beta v | beta k grown]: what each row adds, given those before it
    system = (k_beta @ k.transpose(-1, -2)).mul_(fade)
    right = torch.cat([v * beta, k_beta * grown], -1)
    added = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, keys = added.split([v.shape[-1], k.shape[-1]], -1)
    within = (q @ k.transpose(-1, -2)).mul_(fade)
    q_grown = q * grown
    k_left = (k * (total[..., -1:] - total).exp_()[..., None]).transpose(-1, -2)
    ring = states.shape[0]
    state = states[(start - 1) % ring].clone()
    out = torch.empty_like(v)
    for n in range(v.shape[1]):
        new = torch.baddbmm(values[:, n], keys[:, n], state, alpha=-1)
        torch.baddbmm(torch.bmm(q_grown[:, n], state), within[:, n], new, out=out[:, n])
        state = torch.baddbmm(state * grown[:, n, -1:], k_left[:, n], new)
    states[(start + rows - 1) % ring] = state
    return out.flatten(1, 2)[:, :rows].transpose(0, 1).contiguous()


def _heads(qkv: Tensor, states: Tensor, key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q and k normalised and repeated for the value heads [T, h_v, dk], v [T, h_v, dv]."""
    rows = qkv.shape[0]
    heads, dk, dv = states.shape[1:]
    size = 2 * key_heads * dk
    qk, v = qkv.split_with_sizes([size, heads * dv], 1)
    qk = qk.view(rows, 2, key_heads, 1, dk)
    norm = torch.hypot(torch.linalg.vector_norm(qk, dim=-1, keepdim=True), constant(1e-3))
    qk = (qk / norm).expand(rows, 2, key_heads, heads // key_heads, dk)
    q, k = qk.reshape(rows, 2, heads, dk).unbind(1)
    return q * constant(dk**-0.5), k, v.view(rows, heads, dv)


def _chunks(x: Tensor) -> Tensor:
    """[N * 64, h, ...] to [h, N, 64, ...], contiguous."""
    heads, rows, *rest = x.transpose(0, 1).shape
    return x.transpose(0, 1).reshape(heads, rows // CHUNK, CHUNK, *rest)
