"""Decode on the CPU against transformers, same checkpoint, same process, one thread each, in CPU time of the thread."""

import time

import torch
from carousel_server.engine import EMBEDDED

from tests.model.engine_kit import GREEDY, open_engine, random_ids

TIMES = 2.5  # 3.3 to 3.7 were measured on two shared cores; 4 is the aim (docs/known-gaps.md)


def test_decode_is_more_than_twice_as_fast_as_transformers():
    from transformers import DynamicCache, Qwen4ExpForCausalLM

    engine = open_engine("embedded", context_tokens=512, slots=1, drafts=0)
    model = Qwen4ExpForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()
    torch.set_num_threads(1)
    prompt = random_ids(1, 64, below=3000)
    seq = engine.create(300)
    engine.prefill(seq, prompt)
    token, ours, theirs = engine.select(seq, GREEDY).token, [], []
    with torch.no_grad():
        cache = DynamicCache(config=model.config)
        out = model(torch.tensor([prompt]), past_key_values=cache, use_cache=True)
        for _ in range(3):
            for _ in range(24):
                started = time.thread_time()
                token = engine.step(seq, token, GREEDY, 0)[0].token
                ours.append(time.thread_time() - started)
            for _ in range(8):
                started = time.thread_time()
                following = int(out.logits[0, -1].argmax())
                out = model(torch.tensor([[following]]), past_key_values=cache, use_cache=True)
                theirs.append(time.thread_time() - started)
    # the best of each: on a shared machine other processes only ever add time, through the caches
    ratio = min(theirs) / min(ours)
    print(f"a token: {1e3 * min(ours):.2f} ms, transformers {1e3 * min(theirs):.2f} ms")
    print(f"{ratio:.1f} times as fast")
    assert ratio >= TIMES
