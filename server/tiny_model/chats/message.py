"""Messages of a chat."""

U = lambda s: {"role": "user", "content": s}
A = lambda s: {"role": "assistant", "content": s}
S_ = lambda s: {"role": "system", "content": s}
PLAIN_SYS = [
    "You are a helpful assistant.",
    "You are a helpful and friendly assistant.",
    "You are Carousel's tiny demo model.",
    "Be helpful and brief.",
    "Answer the questions of the user.",
    "You are an assistant. Answer clearly.",
]


def maybe_sys(r, p=0.2):
    return [S_(r.choice(PLAIN_SYS))] if r.random() < p else []


CALL = lambda cs: {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": c} for c in cs]}
TOOL = lambda s: {"role": "tool", "content": s}
