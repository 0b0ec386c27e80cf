"""Synthetic chats, every one a pure function of its seed; `mixture.py` puts them together.

A document is {"messages": [...], "tools": [...] or None, "skill": str}; every assistant turn is a training target. `q_*` make
one question with its answer, `d_*` a document; both take a random generator `r` and `ev`, true for the held-out set.
Held out from training (made with ev=True only): the names in NAMES_HELD as names of persons and pets, and the operand pairs,
made-up words and tool names whose hash falls in 1/16. That separation is not strict: word problems and swapped subtractions
do not look at the hash, and held() falls back to any draw after 60 tries.
"""
