"""A tiny random `qwen4_exp` checkpoint in the BF16 release layout, the one that golden/ was made from.

The order of the random draws is part of the golden values: do not reorder.
"""
import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file


def make_tiny(folder, *, dtype="float32", seed=0, layers=8, budget=32):
    """Write config.json, generation_config.json and model.safetensors into `folder`; returns it."""
    T = dict(
        model_type="qwen4_exp_text", dtype=dtype, vocab_size=512, hidden_size=64, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, hidden_act="silu", max_position_embeddings=4096,
        initializer_range=0.02, rms_norm_eps=1e-6, use_cache=True, tie_word_embeddings=False, attention_bias=False,
        attention_dropout=0.0, full_attention_interval=4,
        layer_types=["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(layers)],
        linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
        linear_num_value_heads=6, mamba_ssm_dtype="float32", output_gate_type="sigmoid",
        moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=8, num_experts_per_tok=2,
        norm_topk_prob=True, router_aux_loss_coef=0.001, output_router_logits=False,
        hc_count=4, hc_lowrank=16,
        ple_layer_ids=[2], ple_embed_dim=64, ple_conv_kernel_size=4, ngram_size=3, heads_per_ngram=8,
        ngram_vocab_size_base=101, make_ngram_vocab_size_divisible_by=128, split_ngram_parts=4, seed=1234,
        indexer_n_heads=4, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=budget, indexer_compress_ratio=4,
        mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False,
        mtp={"hybrid": True, "layer_types": ["full_attention"], "num_hidden_layers": 1, "rope_theta": 10000000},
        eos_token_id=500, bos_token_id=None, pad_token_id=None, partial_rotary_factor=0.25,
        rope_parameters={"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                         "mrope_section": [2, 1, 1], "mrope_interleaved": True},
    )
    C = dict(
        architectures=["Qwen4ExpForConditionalGeneration"], model_type="qwen4_exp", dtype=dtype, tie_word_embeddings=False,
        text_config=T,
        vision_config=dict(model_type="qwen4_exp", depth=1, hidden_size=32, intermediate_size=64, num_heads=2, out_hidden_size=64,
                           patch_size=16, spatial_merge_size=2, temporal_patch_size=2, in_channels=3,
                           num_position_embeddings=16, deepstack_visual_indexes=[]),
        image_token_id=505, video_token_id=506, vision_start_token_id=503, vision_end_token_id=504, eos_token_id=500,
    )
    g = torch.Generator().manual_seed(seed)
    H, hc, r = T["hidden_size"], T["hc_count"], T["hc_lowrank"]
    W = {}
    def rn(*s, std=1.0): return torch.randn(*s, generator=g) * std
    def lin(name, o, i, gain=1.0): W[name + ".weight"] = rn(o, i, std=gain / math.sqrt(i))
    def znorm(name, n): W[name + ".weight"] = rn(n, std=0.1)            # zero-centred: effective scale 1+w

    def hyper(p, combine=True):
        znorm(p + ".hc_norm", hc * H)
        lin(p + ".input_mix_weight_down", r, hc * H, 3.0)
        lin(p + ".input_mix_weight_up", hc * H, r, 3.0)
        if combine: lin(p + ".block_inject_weight", hc, hc * H, 4.0)
    def moe(p):
        E, I, S = T["num_experts"], T["moe_intermediate_size"], T["shared_expert_intermediate_size"]
        lin(p + ".gate", E, H, 2.0)
        W[p + ".experts.gate_up_proj"] = rn(E, 2 * I, H, std=1 / math.sqrt(H))   # rows: gate then up
        W[p + ".experts.down_proj"] = rn(E, H, I, std=2 / math.sqrt(I))
        lin(p + ".shared_expert.gate_proj", S, H); lin(p + ".shared_expert.up_proj", S, H)
        lin(p + ".shared_expert.down_proj", H, S, 2.0); lin(p + ".shared_expert_gate", 1, H)
    def attn(p):
        nh, kv, d = T["num_attention_heads"], T["num_key_value_heads"], T["head_dim"]
        lin(p + ".q_proj", nh * d * 2, H); lin(p + ".k_proj", kv * d, H); lin(p + ".v_proj", kv * d, H); lin(p + ".o_proj", H, nh * d, 2.0)
        znorm(p + ".q_norm", d); znorm(p + ".k_norm", d)
        n, di = T["indexer_n_heads"], T["indexer_head_dim"]
        lin(p + ".indexer.index_qk_proj", (n + 1) * di, H); znorm(p + ".indexer.q_layernorm", di); znorm(p + ".indexer.k_layernorm", di)
    def gdn(p):
        kh, vh, dk, dv, K = (T[k] for k in ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"))
        cd = 2 * kh * dk + vh * dv
        lin(p + ".in_proj_qkv", cd, H); lin(p + ".in_proj_z", vh * dv, H); lin(p + ".in_proj_b", vh, H); lin(p + ".in_proj_a", vh, H)
        W[p + ".conv1d.weight"] = rn(cd, 1, K, std=0.6)
        W[p + ".A_log"] = torch.empty(vh).uniform_(0.02, 4, generator=g).log()
        W[p + ".dt_bias"] = rn(vh, std=0.5)
        W[p + ".norm.weight"] = 1 + rn(dv, std=0.1)                       # plain (ones-centred) weight
        lin(p + ".out_proj", H, vh * dv, 2.0)
    def ple(p, idx):
        def isp(v): return v > 1 and all(v % q for q in range(2, math.isqrt(v) + 1))
        def nth(start, n):
            v = start
            for _ in range(n):
                v += 1
                while not isp(v): v += 1
            return v
        nheads = (T["ngram_size"] - 1) * T["heads_per_ngram"]; sizes, offs, tot = [], [], 0
        for h in range(nheads):
            s = nth(T["ngram_vocab_size_base"] - 1, idx * nheads + h + 1); sizes.append(s); offs.append(tot); tot += s
        div = T["make_ngram_vocab_size_divisible_by"]; rows = -(-tot // div) * div
        M = (1 << 64) - 1; G = 0x9E3779B97F4A7C15
        def sm(v):
            v = (v + G) & M; v = ((v ^ (v >> 30)) * 0xBF58476D1CE4E5B9) & M; v = ((v ^ (v >> 27)) * 0x94D049BB133111EB) & M
            return v ^ (v >> 31)
        half = max(1, (((1 << 63) - 1) // T["vocab_size"]) // 2); base = T["seed"] + 10007 * idx
        W[p + ".ple_embedding.layer_multipliers"] = torch.tensor([2 * (sm((base + G * (i + 1)) & M) % half) + 1 for i in range(T["ngram_size"])], dtype=torch.long)
        W[p + ".ple_embedding.ngram_heads_vocab_sizes"] = torch.tensor(sizes); W[p + ".ple_embedding.ngram_heads_offsets"] = torch.tensor(offs)
        tab = rn(rows, T["ple_embed_dim"] // nheads)
        for i, t in enumerate(tab.chunk(T["split_ngram_parts"])): W[f"{p}.ple_embedding.ngram_embedding.shard_{i}.weight"] = t.clone()
        lin(p + ".key_proj", hc * H, T["ple_embed_dim"]); lin(p + ".value_proj", H, T["ple_embed_dim"])
        for n in ("norm_key", "norm_query", "norm_conv"): znorm(f"{p}.{n}", hc * H)
        W[p + ".conv1d.weight"] = rn(hc * H, 1, T["ple_conv_kernel_size"], std=0.5)

    L = "model.language_model"
    W[L + ".embed_tokens.weight"] = rn(T["vocab_size"], H)
    for i, lt in enumerate(T["layer_types"]):
        p = f"{L}.layers.{i}"
        if i + 1 in T["ple_layer_ids"]: ple(p + ".ple", T["ple_layer_ids"].index(i + 1))
        (gdn if lt == "linear_attention" else attn)(p + (".linear_attn" if lt == "linear_attention" else ".self_attn"))
        hyper(p + ".attn_hyper_connection"); hyper(p + ".mlp_hyper_connection"); moe(p + ".mlp")
    hyper(L + ".hyper_connection_mixer", combine=False)
    lin("lm_head", T["vocab_size"], H, 3.0)
    # --- MTP (ignored by transformers) ---
    lin("mtp.fc_embedding", H, H); lin("mtp.fc_hidden", H, H); znorm("mtp.pre_fc_norm_embedding", H); znorm("mtp.pre_fc_norm_hidden", hc * H)
    attn("mtp.layers.0.self_attn"); moe("mtp.layers.0.mlp"); hyper("mtp.layers.0.attn_hyper_connection"); hyper("mtp.layers.0.mlp_hyper_connection")
    hyper("mtp.hyper_connection_mixer", combine=False)

    kind = getattr(torch, dtype)
    W = {k: (v.to(kind) if v.is_floating_point() else v).contiguous() for k, v in W.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(C, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [500], "do_sample": False}))
    save_file(W, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
