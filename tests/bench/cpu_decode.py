"""The embedded model on the CPU beside transformers. `python -m tests.bench.cpu_decode [out.json [threads ...]]`

Same checkpoint, same process, taking turns: decode and prefill with one thread and with two, or as asked. Then drafts
on real text: greedy answers to chat prompts at every fixed width and at the width that the engine chooses. Wall time
and CPU time of the process: on a machine with other work only the second compares. The two agree on the logits of the
prompt, or the bench stops.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from carousel_server.engine import EMBEDDED, load
from carousel_server.engine.mtp import DraftWidth
from carousel_server.engine.threads import Threads
from carousel_server.engine.torch_engine import TorchEngine
from carousel_server.prompt import PromptTemplate
from carousel_server.tokenizer import Tokenizer
from carousel_server.turn import Message

from tests.bench.gpu_decode import commit
from tests.model.engine_kit import GREEDY, kept_logits, random_ids
from tests.model.test_drafts import CHATS

REPEATS, STEPS, THEIR_STEPS, ANSWER = 5, 32, 12, 100
SHORT, LONG = 64, 512  # tokens of a prompt: dense and sparse attention
TOLERANCE = 5e-4

Work = tuple[Callable[[], None], int]  # and how many tokens it is


class Fixed(DraftWidth):
    """Always the same width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def choose(self, most: int) -> int:
        """That width, or what there is room for."""
        return min(self.width, most)


class Ours:
    """This engine, prefilled with a prompt."""

    def __init__(self, engine: TorchEngine, prompt: list[int]) -> None:
        self.engine, self.prompt = engine, prompt
        self.prefill()

    def prefill(self) -> None:
        """The prompt into a new sequence."""
        self.seq = self.engine.create(len(self.prompt) + (REPEATS + 1) * STEPS)
        self.engine.prefill(self.seq, self.prompt)
        self.logits = kept_logits(self.engine, self.seq)
        self.token = int(self.logits.argmax())

    def decode(self) -> None:
        """Some tokens."""
        for _ in range(STEPS):
            self.token = self.engine.step(self.seq, self.token, GREEDY, 0)[0].token

    def again(self) -> None:
        """A prefill; the sequence is given back first."""
        self.engine.release(self.seq)
        self.prefill()


class Theirs:
    """transformers in eager mode with a dynamic cache."""

    def __init__(self, model: Any, prompt: list[int]) -> None:
        self.model, self.prompt = model, prompt
        self.again()

    @torch.no_grad()
    def again(self) -> None:
        """A prefill."""
        from transformers import DynamicCache

        self.cache = DynamicCache(config=self.model.config)
        out = self.model(torch.tensor([self.prompt]), past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.logits = out.logits[0, -1]

    @torch.no_grad()
    def decode(self) -> None:
        """Some tokens."""
        for _ in range(THEIR_STEPS):
            token = self.logits.argmax()[None, None]
            self.logits = self.model(token, past_key_values=self.cache, use_cache=True).logits[0, -1]


def spread(values: list[float]) -> dict[str, float]:
    """Median and ends."""
    return {"median": median(values), "low": min(values), "high": max(values), "runs": len(values)}


def taking_turns(work: dict[str, Work]) -> dict[str, Any]:
    """Seconds a token of each piece of work, which runs as often as the others and between them; the first warms up."""
    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    times: dict[str, dict[str, list[float]]] = {name: {clock: [] for clock in clocks} for name in work}
    for _ in range(REPEATS + 1):
        for name, (run, tokens) in work.items():
            started = [clock() for clock in clocks.values()]
            run()
            for (which, clock), start in zip(clocks.items(), started, strict=True):
                times[name][which].append((clock() - start) / tokens)
    return {name: {which: spread(t[1:]) for which, t in found.items()} for name, found in times.items()}


def compare(name: str, ours: Work, theirs: Work) -> dict[str, Any]:
    """Both, taking turns."""
    both = taking_turns({"ours": ours, "transformers": theirs})
    for clock in ("wall", "cpu"):
        mine, other = both["ours"][clock], both["transformers"][clock]
        both[f"times_{clock}"] = other["median"] / mine["median"]
        print(
            f"{name}, {clock}: {1e3 * mine['median']:.3f} ms a token ({1e3 * mine['low']:.3f} to "
            f"{1e3 * mine['high']:.3f}), transformers {1e3 * other['median']:.3f} ({1e3 * other['low']:.3f} to "
            f"{1e3 * other['high']:.3f}): {both[f'times_{clock}']:.2f} times as fast",
            flush=True,
        )
    return both


def beside(engine: TorchEngine, model: Any, threads: int) -> dict[str, Any]:
    """Decode behind a short and a long prompt, and prefill of the long one, of both with that many threads."""
    engine.threads = Threads(threads, threads)
    torch.set_num_threads(threads)
    found: dict[str, Any] = {}
    for length in (SHORT, LONG):
        prompt = random_ids(3, length, below=3000)
        ours, theirs = Ours(engine, prompt), Theirs(model, prompt)
        worst = float((ours.logits - theirs.logits).abs().max())
        assert worst <= TOLERANCE, f"logits differ by {worst}"
        found[f"decode_{length}"] = compare(
            f"{threads} threads, decode behind {length} tokens", (ours.decode, STEPS), (theirs.decode, THEIR_STEPS)
        )
        if length == LONG:
            name = f"{threads} threads, prefill of {length} tokens"
            found[f"prefill_{length}"] = compare(name, (ours.again, length), (theirs.again, length))
        engine.release(ours.seq)
    return found


def answers(engine: TorchEngine, prompts: list[list[int]], width: DraftWidth | None) -> tuple[float, int, int]:
    """CPU seconds, tokens and steps of greedy answers, prompts not counted."""
    seconds, tokens, steps = 0.0, 0, 0
    for prompt in prompts:
        seq = engine.create(len(prompt) + ANSWER + 8)
        if width is not None:
            seq.width = width
        engine.prefill(seq, prompt)
        out = [engine.select(seq, GREEDY).token]
        started = time.process_time()
        while len(out) < ANSWER and out[-1] not in engine.info.stop_tokens:
            out += [s.token for s in engine.step(seq, out[-1], GREEDY, 3)]
            steps += 1
        seconds, tokens = seconds + time.process_time() - started, tokens + len(out) - 1
        engine.release(seq)
    return seconds, tokens, steps


def drafts(engine: TorchEngine, threads: int) -> dict[str, Any]:
    """Tokens a CPU second at each width on chat prompts."""
    engine.threads = Threads(threads, threads)
    tokenizer = Tokenizer.load(EMBEDDED)
    template = PromptTemplate.load(EMBEDDED, tokenizer)
    prompts = [list(template.render((Message(role="user", content=chat),), ()).tokens) for chat in CHATS]
    widths: dict[str, DraftWidth | None] = {str(w): Fixed(w) for w in range(4)} | {"adaptive": None}
    runs: dict[str, list[tuple[float, int, int]]] = {name: [] for name in widths}
    for _ in range(6):
        for name, width in widths.items():
            runs[name].append(answers(engine, prompts, width))
    found: dict[str, Any] = {}
    for name, all_runs in runs.items():
        rate = spread([tokens / seconds for seconds, tokens, _ in all_runs[1:]])
        step = median(seconds / steps for seconds, _, steps in all_runs[1:])
        _, tokens, steps = all_runs[0]
        found[name] = {"tokens_a_second": rate, "step_ms": 1e3 * step, "tokens": tokens, "steps": steps}
        print(
            f"{threads} threads, drafts {name}: {rate['median']:.0f} tokens a CPU second ({rate['low']:.0f} to "
            f"{rate['high']:.0f}), {tokens} tokens in {steps} steps of {1e3 * step:.2f} ms"
        )
    return found


def main() -> None:
    from transformers import Qwen4ExpForCausalLM

    engine = load("embedded", context_tokens=2048, slots=1, drafts=0)
    model = Qwen4ExpForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()
    result: dict[str, Any] = {
        "commit": commit(),
        "torch": torch.__version__,
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
    }
    counts = [int(n) for n in sys.argv[2:]] or [1, 2]
    result |= {f"threads_{n}": beside(engine, model, n) for n in counts}
    drafting = load("embedded", context_tokens=2048, slots=1, drafts=3)
    result |= {f"drafts_threads_{n}": drafts(drafting, n) for n in counts}
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
