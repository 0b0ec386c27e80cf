"""Tokenise, weight and pack documents; background workers make batch k from the seed (seed, k) alone."""

import os
import random

import numpy as np
import torch
import torch.multiprocessing as mp
from tokenizers import Tokenizer

from chatfmt import render
from chats.mixture import make_doc

PROMPT_W, ANSWER_W = 1, 10  # tenths


class Encoder:
    def __init__(s, path):
        s.t = Tokenizer.from_file(path)
        i = s.t.token_to_id
        s.eot, s.end, s.think = i("<|endoftext|>"), i("<|im_end|>"), i("</think>")

    def doc(s, d, last_only=False):
        """-> ids, weights (tenths; assistant text and its <|im_end|> count fully)"""
        ids = np.array(s.t.encode(render(d["messages"], d["tools"])).ids + [s.eot])
        w = np.full(len(ids), PROMPT_W, np.int8)
        starts = np.nonzero(ids == s.think)[0] + 2
        ends = np.nonzero(ids == s.end)[0]
        if last_only:
            w[:] = 0
            starts = starts[-1:]
        for a in starts:
            w[a : ends[np.searchsorted(ends, a)] + 1] = ANSWER_W
        return ids, w


def pack(docs, B, T, eot, R=4):
    """docs: iterator of (ids, w) -> arrays [B,T]: ids, doc, pos, w.  Documents start at multiples of R."""
    ids = np.full((B, T), eot, np.int64)
    doc = np.zeros((B, T), np.int64)
    pos = np.zeros((B, T), np.int64)
    w = np.full((B, T), -1, np.int8)
    fill = [0] * B
    n = [0] * B
    spans = []
    misses = 0
    while misses < 24:
        x = next(docs, None)
        if x is None:
            break
        i, ww, tag = x
        L = len(i)
        P = -(-L // R) * R
        row = next((b for b in range(B) if fill[b] + P <= T), None)
        if row is None:
            misses += 1
            continue
        a = fill[row]
        ids[row, a : a + L] = i
        w[row, a : a + L] = ww
        doc[row, a : a + P] = n[row]
        pos[row, a : a + P] = np.arange(P)
        fill[row] += P
        n[row] += 1
        spans.append((row, a, L, tag))
    for b in range(B):
        if fill[b] < T:
            doc[b, fill[b] :] = n[b]
            pos[b, fill[b] :] = np.arange(T - fill[b])
    return ids, doc, pos, w, spans


def train_docs(enc, seed, T):
    r = random.Random(seed)
    j = 0
    while True:
        i, w = enc.doc(make_doc(random.Random(f"{seed}-{j}")))
        j += 1
        if r.random() < 0.06:  # two documents as one sequence, <|endoftext|> between them
            i2, w2 = enc.doc(make_doc(random.Random(f"{seed}-{j}")))
            j += 1
            i, w = np.concatenate([i, i2]), np.concatenate([w, w2])
        if len(i) <= T:
            yield i, w, None


def _worker(path, seed, B, T, first, step, last, q):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    enc = Encoder(path)
    for k in range(first, last, step):
        a = pack(train_docs(enc, f"train-{seed}-{k}", T), B, T, enc.eot)
        q.put(tuple(x.astype(np.int16 if x.dtype != np.int8 else np.int8) for x in a[:4]))


def batches(path, seed, B, T, first, last, workers, device):
    qs = []
    ps = []
    ctx = mp.get_context("spawn")
    for i in range(workers):
        q = ctx.Queue(6)
        qs.append(q)
        ps.append(ctx.Process(target=_worker, args=(path, seed, B, T, first + i, workers, last, q), daemon=True))
        ps[-1].start()
    for k in range(first, last):
        x = [torch.from_numpy(a) for a in qs[(k - first) % workers].get()]
        if device != "cpu":
            x = [t.pin_memory().to(device, non_blocking=True) for t in x]
        yield [x[0].long(), x[1].long(), x[2].long(), x[3].float() / 10]
    for p in ps:
        p.terminate()
