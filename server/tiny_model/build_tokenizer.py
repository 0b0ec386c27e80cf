"""Train the byte-level BPE tokenizer:  python build_tokenizer.py OUT_DIR [--docs 40000]

3024 byte-level BPE ids, then the 33 control tokens of the Qwen family in their usual order (so <|endoftext|> is 3024);
the model's embedding is padded to 3072 rows, as the real checkpoints pad theirs."""

import argparse
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from chatfmt import assistant_text, dumps
from chats.mixture import make_doc

BASE = 3024
SPECIAL = "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>".split()
NOT_SPECIAL = set(
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think>".split()
)
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def texts(n):
    for i in range(n):
        d = make_doc(random.Random(f"tok-{i}"))
        for m in d["messages"]:
            yield m["role"] + "\n"
            t = assistant_text(m) if m["role"] == "assistant" else m["content"]
            for s in SPECIAL:
                t = t.replace(s, "\n")
            yield t
        for t in d["tools"] or []:
            yield dumps(t)
        if i % 10 == 0:  # chat control words
            yield "<function=a>\n<parameter=b>\nc\n</parameter>\n</function>"
            yield "system\n# Tools\n\nThe functions below are available."


def build(out, docs):
    t = Tokenizer(models.BPE(byte_fallback=False))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(
        texts(docs),
        trainers.BpeTrainer(
            vocab_size=BASE, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
        ),
    )
    assert t.get_vocab_size() == BASE, t.get_vocab_size()
    t.add_tokens([AddedToken(s, special=s not in NOT_SPECIAL, normalized=False) for s in SPECIAL])
    os.makedirs(out, exist_ok=True)
    t.save(os.path.join(out, "tokenizer.json"))
    json.dump(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "bos_token": None,
            "unk_token": None,
            "model_max_length": 8192,
            "add_bos_token": False,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
        },
        open(os.path.join(out, "tokenizer_config.json"), "w"),
        indent=1,
    )
    return t


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--docs", type=int, default=40000)
    a = ap.parse_args()
    t = build(a.out, a.docs)
    from chatfmt import render

    n = c = 0
    for i in range(500):
        s = render(*[make_doc(random.Random(f"chk-{i}"))[k] for k in ("messages", "tools")])
        ids = t.encode(s).ids
        assert t.decode(ids, skip_special_tokens=False) == __import__("unicodedata").normalize("NFC", s)
        n += len(ids)
        c += len(s)
    print(
        "ids",
        t.get_vocab_size(),
        "chars per token",
        round(c / n, 2),
        "tokens per document",
        n // 500,
        t.token_to_id("<|endoftext|>"),
        t.encode("Hello 123! def x():\n    return\n\n").tokens,
    )
