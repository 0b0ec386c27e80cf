"""Weights in the release layout."""

import torch


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
