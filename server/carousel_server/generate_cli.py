"""`carousel-server generate MODEL --prompt TEXT`: one answer without a server, for trying a checkpoint."""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

INVALID, MISSING = 64, 66
CHECK_TOLERANCE = 5e-4  # largest difference of a log probability between the two runs, fp32 rounding


def parser() -> argparse.ArgumentParser:
    """Flags of the command."""
    found = argparse.ArgumentParser(
        prog="carousel-server generate",
        description="Answer one prompt and print the text; speed and drafts go to stderr.",
        allow_abbrev=False,
    )
    add = found.add_argument
    add("model", nargs="?", default="embedded", help="folder of a checkpoint (default: %(default)s)")
    add("--prompt", required=True, help="what the user says; - reads it from stdin")
    add("--system", help="a system message before it")
    add("--raw", action="store_true", help="feed the prompt as it is, without the chat template")
    add("--max-tokens", type=int, default=256, help="tokens at most (default: %(default)s)")
    add("--temperature", type=float, default=0.0, help="0 takes the best token each time (default: %(default)s)")
    add("--top-p", type=float, default=1.0, help="(default: %(default)s)")
    add("--seed", type=int, default=0, help="of the draws at a temperature above 0 (default: %(default)s)")
    add("--drafts", type=int, choices=range(4), default=2, help="tokens drafted a step (default: %(default)s)")
    add("--threads", type=int, help="CPU threads (default: what the container may use)")
    add(
        "--check",
        action="store_true",
        help="run the whole text once more, in one pass without cache and drafts, and compare every token",
    )
    return found


def main(argv: Sequence[str]) -> int:
    """Exit code 0; 1 when --check finds a difference, 64 for a wrong flag, 66 for a missing or faulty model."""
    try:
        options = parser().parse_args(list(argv))
    except SystemExit as end:
        return INVALID if end.code else 0
    if options.max_tokens < 1 or options.temperature < 0 or not 0 < options.top_p <= 1:
        return _end(INVALID, "--max-tokens must be at least 1, --temperature at least 0, --top-p above 0 and at most 1")
    from carousel_server.engine import load, model_folder
    from carousel_server.engine.config import CheckpointError
    from carousel_server.failure import Failure
    from carousel_server.tokenizer import Tokenizer

    folder = model_folder(options.model)
    try:
        tokenizer = Tokenizer.load(folder)
        tokens = _prompt_tokens(options, folder, tokenizer)
        engine = load(
            options.model,
            context_tokens=max(64, len(tokens) + options.max_tokens),
            slots=2 if options.check else 1,
            drafts=options.drafts,
            threads=options.threads,
        )
    except (CheckpointError, Failure, OSError, ValueError) as error:
        return _end(MISSING, str(error))
    out, seconds = _generate(engine, tokenizer, tokens, options)
    print(
        f"{len(tokens)} prompt tokens in {seconds[0]:.2f} s; {len(out)} tokens in {seconds[1]:.2f} s "
        f"({len(out) / max(seconds[1], 1e-9):.0f} a second); "
        f"{engine.stats.drafts_accepted} of {engine.stats.drafts_proposed} drafts accepted",
        file=sys.stderr,
    )
    return _check(engine, tokens, out, greedy=options.temperature == 0) if options.check else 0


def _prompt_tokens(options: argparse.Namespace, folder: Any, tokenizer: Any) -> list[int]:
    from carousel_server.prompt import PromptTemplate
    from carousel_server.turn import Message

    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    if not text:
        raise ValueError("the prompt is empty")
    if options.raw:
        return list(tokenizer.encode(text))
    system = (Message(role="system", content=options.system),) if options.system else ()
    rendered = PromptTemplate.load(folder, tokenizer).render((*system, Message(role="user", content=text)), ())
    return list(rendered.tokens)


def _generate(
    engine: Any, tokenizer: Any, tokens: list[int], options: argparse.Namespace
) -> tuple[list[int], tuple[float, float]]:
    """Print the text as it comes; returns its tokens and the seconds of prompt and answer."""
    from carousel_server.sampling import Sampler
    from carousel_server.turn import RngState, Settings
    from carousel_server.utf8 import Utf8Stream

    sampler = Sampler(
        Settings(temperature=options.temperature, top_p=options.top_p),
        tokens,
        RngState(options.seed),
        engine.info.vocab_size,
    )
    text = Utf8Stream()
    out: list[int] = []
    started = time.perf_counter()
    seq = engine.create(len(tokens) + options.max_tokens)
    engine.prefill(seq, tokens)
    prefilled = time.perf_counter()
    chosen = [engine.select(seq, sampler.params())]
    while True:
        for selected in chosen:
            sampler.accept(selected.token)
            if selected.token in engine.info.stop_tokens or len(out) == options.max_tokens:
                break
            out.append(selected.token)
            print(text.feed(tokenizer.token_bytes(selected.token)), end="", flush=True)
        if chosen[-1].token in engine.info.stop_tokens or len(out) == options.max_tokens:
            break
        chosen = engine.step(seq, chosen[-1].token, sampler.params(), options.drafts)
    print(text.close())
    engine.release(seq)
    return out, (prefilled - started, time.perf_counter() - prefilled)


def _check(engine: Any, tokens: list[int], out: list[int], *, greedy: bool) -> int:
    """Every token of the answer twice: fed one by one, and with its whole text in a single pass."""
    from carousel_server.engine.protocol import SamplerParams

    look = SamplerParams(top_logprobs=2)
    worst, same = 0.0, 0
    stepped = engine.create(len(tokens) + len(out))
    engine.prefill(stepped, tokens)
    for i, token in enumerate(out):
        whole = engine.create(len(tokens) + i)
        engine.prefill(whole, tokens + out[:i])
        ours, straight = engine.select(stepped, look), engine.select(whole, look)
        engine.release(whole)
        worst = max(worst, *(abs(a - b) for (_, a), (_, b) in zip(ours.top, straight.top, strict=True)))
        best = {ours.token, token} if greedy else {ours.token}
        same += best == {straight.token} or straight.top[0][1] - straight.top[1][1] < CHECK_TOLERANCE
        if i + 1 < len(out):
            engine.step(stepped, token, look, 0)
    good = same == len(out) and worst <= CHECK_TOLERANCE
    print(
        f"check: {same} of {len(out)} tokens as in a single pass, log probabilities within {worst:.1e}: "
        f"{'the same' if good else 'DIFFERENT'}",
        file=sys.stderr,
    )
    return 0 if good else 1


def _end(code: int, message: str) -> int:
    print(f"carousel-server generate: {message}", file=sys.stderr, flush=True)
    return code
