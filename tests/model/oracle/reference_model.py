"""An independent float32 reference of `qwen4_exp` with its draft head: one file, no cache, loops over tokens.

It shares no code with the engine and needs only torch and safetensors. One sequence of ids in; logits of every row out.
"""
import json
import math
from pathlib import Path

import torch
from safetensors import safe_open
from torch.nn.functional import silu, softplus


def rms(x, w, eps, group=None):
    """Zero-centred norm; with `group` each run of that many values has its own statistic."""
    y = x.reshape(*x.shape[:-1], -1, group) if group else x
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return y.reshape(x.shape) * (1.0 + w)


def rope(x, angles):
    """Half-split rotation of the first entries: x [..., T, d], angles [T, r]."""
    r = angles.shape[-1]
    a, b = x[..., :r], x[..., r:]
    turned = torch.cat([-a[..., r // 2 :], a[..., : r // 2]], -1)
    return torch.cat([a * angles.cos() + turned * angles.sin(), b], -1)


def best_blocks(scores, top):
    """The tie rule: highest score first, then the lowest index."""
    return sorted(sorted(range(len(scores)), key=lambda b: (-scores[b].item(), b))[:top])


class Reference:
    def __init__(self, folder):
        folder = Path(folder)
        config = json.loads((folder / "config.json").read_text())
        self.c = config.get("text_config", config)
        self.w = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                for name in file.keys():
                    tensor = file.get_tensor(name)
                    wide = tensor.float() if tensor.is_floating_point() else tensor
                    self.w[name.replace("model.language_model.", "")] = wide
        for layer in self.c["ple_layer_ids"]:
            table = f"layers.{layer - 1}.ple.ple_embedding.ngram_embedding"
            shards = [self.w.pop(f"{table}.shard_{j}.weight") for j in range(self.c["split_ngram_parts"])]
            self.w[table] = torch.cat(shards)
        self.eps, self.H, self.n = self.c["rms_norm_eps"], self.c["hidden_size"], self.c["hc_count"]
        eos = self.c["eos_token_id"]
        self.eos = eos[0] if isinstance(eos, list) else eos
        self.ties = []  # rows whose block cut falls inside equal scores

    @torch.no_grad()
    def forward(self, ids, dense=False):
        """(logits [T, V], streams [T, n * H] before the final mixer)."""
        ids = [int(i) for i in ids]
        angles = self.angles(torch.arange(len(ids)))
        S = self.w["embed_tokens.weight"][ids].repeat(1, self.n)
        for i in range(self.c["num_hidden_layers"]):
            S = self.layer(S, f"layers.{i}", angles, ids, dense)
        return self.linear(self.mix(S, "hyper_connection_mixer", inject=False), "lm_head"), S

    @torch.no_grad()
    def mtp(self, following, hidden, dense=False):
        """Row t fuses hidden[t] with the embedding of following[t]: (logits of what comes after that, streams)."""
        rows = hidden.shape[0]
        e = rms(self.w["embed_tokens.weight"][[int(i) for i in following]], self.w["mtp.pre_fc_norm_embedding.weight"], self.eps)
        h = rms(hidden, self.w["mtp.pre_fc_norm_hidden.weight"], self.eps).view(rows, self.n, self.H)
        S = self.linear(e, "mtp.fc_embedding")[:, None] + self.linear(h, "mtp.fc_hidden")
        S = self.layer(S.reshape(rows, -1), "mtp.layers.0", self.angles(torch.arange(rows)), None, dense)
        return self.linear(self.mix(S, "mtp.hyper_connection_mixer", inject=False), "lm_head"), S

    def linear(self, x, name):
        return x @ self.w[f"{name}.weight"].T

    def angles(self, positions):
        parameters = self.c["rope_parameters"]
        d = int(self.c["head_dim"] * parameters["partial_rotary_factor"])
        inverse = 1.0 / parameters["rope_theta"] ** (torch.arange(0, d, 2).float() / d)
        half = positions[:, None].float() * inverse
        return torch.cat([half, half], -1)

    def layer(self, S, p, angles, ids, dense):
        if f"{p}.ple.key_proj.weight" in self.w:
            S = S + self.ngram(S, ids, f"{p}.ple")
        x, inject = self.mix(S, f"{p}.attn_hyper_connection")
        linear = f"{p}.linear_attn.A_log" in self.w
        y = self.delta(x, f"{p}.linear_attn") if linear else self.attention(x, f"{p}.self_attn", angles, dense)
        S = self.back(S, y, inject)
        x, inject = self.mix(S, f"{p}.mlp_hyper_connection")
        return self.back(S, self.experts(x, f"{p}.mlp"), inject)

    def mix(self, S, p, inject=True):
        normed = rms(S, self.w[f"{p}.hc_norm.weight"], self.eps, self.H)
        low = silu(self.linear(normed, f"{p}.input_mix_weight_down") / self.n)
        gate = torch.sigmoid(self.linear(low, f"{p}.input_mix_weight_up"))
        x = (gate * normed).view(-1, self.n, self.H).mean(1)
        return (x, 2 * torch.sigmoid(self.linear(normed, f"{p}.block_inject_weight") / self.n)) if inject else x

    def back(self, S, y, inject):
        return (S.view(-1, self.n, self.H) + inject[:, :, None] * y[:, None, :]).reshape(S.shape)

    def ngram_rows(self, ids, p):
        N, heads = self.c["ngram_size"], self.c["heads_per_ngram"]
        multipliers = self.w[f"{p}.layer_multipliers"].tolist()
        sizes, offsets = self.w[f"{p}.ngram_heads_vocab_sizes"].tolist(), self.w[f"{p}.ngram_heads_offsets"].tolist()
        rows = []
        for t in range(len(ids)):
            context, closed = [ids[t]], False
            for back in range(1, N):
                closed = closed or t - back < 0 or ids[t - back] == self.eos
                context.append(self.eos if closed else ids[t - back])
            hashed, row = context[0] * multipliers[0], []
            for n in range(1, N):
                hashed ^= context[n] * multipliers[n]
                row += [hashed % sizes[h] + offsets[h] for h in range((n - 1) * heads, n * heads)]
            rows.append(row)
        return torch.tensor(rows)

    def ngram(self, S, ids, p):
        rows, n, H = len(ids), self.n, self.H
        e = self.w[f"{p}.ple_embedding.ngram_embedding"][self.ngram_rows(ids, f"{p}.ple_embedding")].flatten(1)
        k = rms(self.linear(e, f"{p}.key_proj"), self.w[f"{p}.norm_key.weight"], self.eps, H).view(rows, n, H)
        q = rms(S, self.w[f"{p}.norm_query.weight"], self.eps, H).view(rows, n, H)
        a = (k * q).sum(-1, keepdim=True) / math.sqrt(H)
        a = a.abs().clamp_min(1e-6).sqrt() * a.sign()
        gated = (torch.sigmoid(a) * self.linear(e, f"{p}.value_proj")[:, None]).flatten(1)
        u = rms(gated, self.w[f"{p}.norm_conv.weight"], self.eps, H)
        taps, dilation = self.w[f"{p}.conv1d.weight"][:, 0], self.c["ngram_size"]
        out = torch.zeros_like(u)
        for t in range(rows):
            for j in range(taps.shape[1]):
                at = t - (taps.shape[1] - 1 - j) * dilation
                if at >= 0:
                    out[t] += u[at] * taps[:, j]
        return gated + silu(out)

    def delta(self, x, p):
        c, rows = self.c, x.shape[0]
        kh, vh, dk, dv = (c[f"linear_{k}"] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        qkv, taps = self.linear(x, f"{p}.in_proj_qkv"), self.w[f"{p}.conv1d.weight"][:, 0]
        K = taps.shape[1]
        padded = torch.cat([qkv.new_zeros(K - 1, qkv.shape[1]), qkv])
        y = silu(sum(padded[j : j + rows] * taps[:, j] for j in range(K)))
        q, k, v = y.split([kh * dk, kh * dk, vh * dv], -1)

        def unit(t):
            t = t.view(rows, kh, dk)
            return (t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6)).repeat_interleave(vh // kh, 1)

        q, k, v = unit(q) * dk**-0.5, unit(k), v.view(rows, vh, dv)
        beta = torch.sigmoid(self.linear(x, f"{p}.in_proj_b"))
        g = -self.w[f"{p}.A_log"].exp() * softplus(self.linear(x, f"{p}.in_proj_a") + self.w[f"{p}.dt_bias"])
        S, out = x.new_zeros(vh, dk, dv), []
        for t in range(rows):
            S = S * g[t].exp()[:, None, None]
            d = (v[t] - torch.einsum("hkv,hk->hv", S, k[t])) * beta[t][:, None]
            S = S + k[t][:, :, None] * d[:, None, :]
            out.append(torch.einsum("hkv,hk->hv", S, q[t]))
        o = torch.stack(out)
        o = self.w[f"{p}.norm.weight"] * (o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + self.eps))
        z = self.linear(x, f"{p}.in_proj_z").view(rows, vh, dv)
        gate = torch.sigmoid(z) if c["output_gate_type"] == "sigmoid" else silu(z)
        return self.linear((o * gate).reshape(rows, vh * dv), f"{p}.out_proj")

    def attention(self, x, p, angles, dense):
        c, rows = self.c, x.shape[0]
        nh, kv, d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        q, gate = self.linear(x, f"{p}.q_proj").view(rows, nh, 2 * d).split(d, -1)
        q = rope(rms(q, self.w[f"{p}.q_norm.weight"], self.eps).transpose(0, 1), angles)
        k = self.linear(x, f"{p}.k_proj").view(rows, kv, d)
        k = rope(rms(k, self.w[f"{p}.k_norm.weight"], self.eps).transpose(0, 1), angles)
        v = self.linear(x, f"{p}.v_proj").view(rows, kv, d).transpose(0, 1)
        k, v = k.repeat_interleave(nh // kv, 0), v.repeat_interleave(nh // kv, 0)
        n, di, ratio = c["indexer_n_heads"], c["indexer_head_dim"], c["indexer_compress_ratio"]
        top, blocks = c["indexer_budget"] // ratio, rows // ratio
        index = self.linear(x, f"{p}.indexer.index_qk_proj")
        iq = rms(index[:, : n * di].view(rows, n, di), self.w[f"{p}.indexer.q_layernorm.weight"], self.eps)
        iq = rope(iq.transpose(0, 1), angles)
        ik = index[: blocks * ratio, n * di :].view(blocks, ratio, di).mean(1)
        ik = rope(rms(ik, self.w[f"{p}.indexer.k_layernorm.weight"], self.eps), angles[: blocks * ratio : ratio])
        out = []
        for t in range(rows):
            seen = (t + 1) // ratio
            chosen = list(range(t + 1))
            if not dense and seen > top:
                scores = torch.relu(iq[:, t] @ ik[:seen].T).sum(0) / math.sqrt(di)
                ordered = scores.sort(descending=True).values
                if ordered[top - 1] == ordered[top]:
                    self.ties.append((p, t))
                picked = best_blocks(scores, top)
                chosen = [b * ratio + i for b in picked for i in range(ratio)] + list(range(seen * ratio, t + 1))
            weights = torch.softmax((q[:, t : t + 1] @ k[:, chosen].transpose(1, 2)) * d**-0.5, -1)
            out.append((weights @ v[:, chosen])[:, 0])
        return self.linear((torch.stack(out) * torch.sigmoid(gate)).reshape(rows, nh * d), f"{p}.o_proj")

    def experts(self, x, p):
        out = torch.zeros_like(x)
        chance = torch.softmax(self.linear(x, f"{p}.gate"), -1)
        weights, ids = chance.topk(self.c["num_experts_per_tok"], -1)
        weights = weights / weights.sum(-1, keepdim=True)
        gate_up, down = self.w[f"{p}.experts.gate_up_proj"], self.w[f"{p}.experts.down_proj"]
        for t in range(x.shape[0]):
            for weight, e in zip(weights[t], ids[t].tolist()):
                a, b = (gate_up[e] @ x[t]).chunk(2)
                out[t] += weight * (down[e] @ (silu(a) * b))
        shared = f"{p}.shared_expert"
        inner = silu(self.linear(x, f"{shared}.gate_proj")) * self.linear(x, f"{shared}.up_proj")
        return out + torch.sigmoid(self.linear(x, f"{p}.shared_expert_gate")) * self.linear(inner, f"{shared}.down_proj")
