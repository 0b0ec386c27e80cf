"""Training implementation of the qwen4_exp text model with its MTP head (packed documents, chunked DeltaNet, dense MoE compute).

Parameter names equal the checkpoint names (without the "model.language_model." prefix).  `evaluate.py` checks the numerics
against transformers.  Documents in a packed row are independent: attention masks, DeltaNet state, convolutions, n-gram
context and indexer blocks all restart where `pos` is 0 (every document starts at a multiple of the compress ratio)."""

import math

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, EOT = 3072, 3024
TEXT = dict(
    model_type="qwen4_exp_text",
    dtype="bfloat16",
    vocab_size=VOCAB,
    hidden_size=256,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    hidden_act="silu",
    max_position_embeddings=8192,
    initializer_range=0.02,
    rms_norm_eps=1e-6,
    use_cache=True,
    tie_word_embeddings=False,
    attention_bias=False,
    attention_dropout=0.0,
    full_attention_interval=4,
    layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    linear_num_key_heads=4,
    linear_num_value_heads=12,
    mamba_ssm_dtype="float32",
    output_gate_type="sigmoid",
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
    num_experts=16,
    num_experts_per_tok=4,
    norm_topk_prob=True,
    router_aux_loss_coef=0.001,
    output_router_logits=False,
    hc_count=4,
    hc_lowrank=32,
    ple_layer_ids=[2],
    ple_embed_dim=256,
    ple_conv_kernel_size=4,
    ngram_size=3,
    heads_per_ngram=8,
    ngram_vocab_size_base=2003,
    make_ngram_vocab_size_divisible_by=128,
    split_ngram_parts=4,
    seed=1234,
    indexer_n_heads=4,
    indexer_kv_heads=1,
    indexer_head_dim=32,
    indexer_budget=256,
    indexer_compress_ratio=4,
    mtp_num_hidden_layers=1,
    mtp_use_dedicated_embeddings=False,
    mtp={"hybrid": True, "layer_types": ["full_attention"], "num_hidden_layers": 1, "rope_theta": 10000000},
    eos_token_id=EOT,
    bos_token_id=None,
    pad_token_id=None,
    partial_rotary_factor=0.25,
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
)
CONFIG = dict(
    architectures=["Qwen4ExpForConditionalGeneration"],
    model_type="qwen4_exp",
    dtype="bfloat16",
    tie_word_embeddings=False,
    text_config=TEXT,
    vision_config=dict(
        model_type="qwen4_exp",
        depth=1,
        hidden_size=32,
        intermediate_size=64,
        num_heads=2,
        out_hidden_size=256,
        patch_size=16,
        spatial_merge_size=2,
        temporal_patch_size=2,
        in_channels=3,
        num_position_embeddings=16,
        deepstack_visual_indexes=[],
    ),
    image_token_id=EOT + 12,
    video_token_id=EOT + 13,
    vision_start_token_id=EOT + 9,
    vision_end_token_id=EOT + 10,
    eos_token_id=EOT,
)


class Z(nn.Module):
    """Zero-centred RMSNorm, optionally grouped."""

    def __init__(s, n, group=None):
        super().__init__()
        s.weight = nn.Parameter(torch.zeros(n))
        s.group = group

    def forward(s, x):
        x = x.float()
        y = x.unflatten(-1, (-1, s.group)) if s.group else x
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y.flatten(-2) if s.group else y) * (1.0 + s.weight.float())


def lin(i, o, gain=1.0):
    l = nn.Linear(i, o, bias=False)
    nn.init.normal_(l.weight, std=gain / math.sqrt(i))
    return l


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


def rope(x, cs):
    """x [..., T, d] (heads before T), cs = (cos, sin) [B, 1.., T, r/2]; rotates the first r dims, half split."""
    c, s = cs
    h = c.shape[-1]
    a, b, rest = x[..., :h], x[..., h : 2 * h], x[..., 2 * h :]
    return torch.cat([a * c - b * s, b * c + a * s, rest], -1)


def causal_conv(x, w, pos, step=1):
    """Depthwise causal convolution that restarts where pos is 0.  x [B,T,D], w [D,1,K]."""
    K = w.shape[-1]
    y = x * w[:, 0, K - 1]
    for j in range(1, K):
        d = j * step
        sh = F.pad(x, (0, 0, d, 0))[:, : x.shape[1]]
        y = y + torch.where((pos >= d).unsqueeze(-1), sh, 0.0) * w[:, 0, K - 1 - j]
    return y


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


class GNorm(nn.Module):
    def __init__(s, n):
        super().__init__()
        s.weight = nn.Parameter(torch.ones(n))


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


def export_state(m, dtype=torch.bfloat16):
    """Checkpoint tensors in the release layout."""
    out = {}
    for k, v in m.state_dict().items():
        v = v.detach().cpu()
        v = v.to(dtype).contiguous() if v.is_floating_point() else v.contiguous()
        name = k if k.startswith(("mtp.", "lm_head.")) else "model.language_model." + k
        if name.endswith("ple_embedding.table"):
            for i, t in enumerate(v.chunk(m.c["split_ngram_parts"])):
                out[name[:-5] + f"ngram_embedding.shard_{i}.weight"] = t.clone()
        else:
            out[name] = v.clone()
    return out


def import_state(m, t):
    """Inverse of export_state."""
    sd = {}
    for k in m.state_dict():
        name = k if k.startswith(("mtp.", "lm_head.")) else "model.language_model." + k
        if name.endswith("ple_embedding.table"):
            v = torch.cat([t[name[:-5] + f"ngram_embedding.shard_{i}.weight"] for i in range(m.c["split_ngram_parts"])])
        else:
            v = t[name]
        sd[k] = v.float() if v.is_floating_point() else v
    m.load_state_dict(sd)
