"""One-line faults, planted one at a time in the stages between tokens and text. Each must fail a numbered case.

`python -m tests.cases.mutations` prints which case each fails.
"""

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import carousel_server

from tests.cases import replay
from tests.cases import test_cases_a_to_h as cases

PACKAGE = Path(carousel_server.__file__).parent
# In the order of their imports: each is loaded anew, so that all of them see the fault.
STAGES = ("utf8", "stop", "fence", "tool_value", "call_body", "tool_call", "reply")


@dataclass(frozen=True)
class Fault:
    """`right` stands once in the stage's source; `wrong` is the fault."""

    stage: str
    right: str
    wrong: str


FAULTS = [
    Fault("utf8", '("utf-8")(errors="replace")', '("utf-8")(errors="ignore")'),
    Fault("utf8", "final=True", "final=False"),
    Fault("utf8", "return self._decoder.decode(data)", 'return data.decode(errors="replace")'),
    Fault("stop", "longest = max(longest, matched)", "longest = longest or matched"),
    Fault("stop", "keep = max(self._matched)", "keep = min(self._matched)"),
    Fault("stop", "matched = borders[matched - 1]", "matched = 0"),
    Fault("stop", "return text[: end + 1 - length]", "return text[:end]"),
    Fault("stop", 'held, self._held = self._held, ""', 'held, self._held = "", ""'),
    Fault("stop", 'return "" if self.found else text', "return text"),
    Fault("reply", "self._stop.feed(self._utf8.close())", '""'),
    Fault(
        "reply", "deltas = self._pass(text + self._stop.close())", "deltas = [self._text(text + self._stop.close())]"
    ),
    Fault("reply", 'if self._calls and reason == "stop" else', "if self._calls else"),
    Fault("reply", "data = data[: self._max_bytes - self.raw_bytes]", "data = data[:]"),
    Fault("reply", "index = len(self._calls)", "index = 0"),
    Fault("reply", "if self._unsent:", "if False:"),
    Fault("fence", "self._fence = opener[1] if opener else", 'self._fence = "" if opener else'),
    Fault("fence", "closer[1].startswith(self._fence)", "closer[1]"),
    Fault("tool_call", "if self._fence.open:", "if False:"),
    Fault("tool_call", 'self._fence.last == "`"', "False"),
    Fault(
        "tool_call",
        "stop = len(self._buffer) if final else held_from",
        "stop = len(self._buffer) if True else held_from",
    ),
    Fault("tool_call", "known = body.name in self._schemas", "known = body.end is not None"),
    Fault("tool_call", 'self._space = ""\n        self._drop = True', "self._drop = True"),
    Fault("tool_call", "self._drop = True", "self._drop = False"),
    Fault("tool_call", "if self._space and not self._drop:", "if False:"),
    Fault("call_body", "self._pairs += 1", "self._pairs += 0"),
    Fault("call_body", "self._calls += 1", "self._calls += 0"),
    Fault("call_body", r"[\w/=.-]{0,16}", r"[\w/=.-]{0,0}"),
    Fault("call_body", "value.inner and self.text", "False and self.text"),
    Fault("call_body", '.rstrip("=")', ""),
    Fault("call_body", 'self.text.rfind("\\n", 0, stop) + 1', "stop"),
    Fault("call_body", "not (self._pairs or self._calls) and", "not self._pairs and"),
    Fault("tool_value", 'text[1:].removesuffix("\\n")', 'text[1:].rstrip("\\n")'),
    Fault(
        "tool_value",
        'if not text.startswith("\\n"):\n        return text',
        'if not text.startswith("\\n"):\n        return text.strip()',
    ),
    Fault("tool_value", 'frozenset({"object", "array"}), True', 'frozenset({"object", "array", "integer"}), True'),
    Fault("tool_value", "if math.isinf(number):", "if False:"),
    Fault("tool_value", "word.lower() in _BOOLEANS", "word in _BOOLEANS"),
    Fault("tool_value", 'return both | {"null"} if', "return both if"),
]


@contextmanager
def planted(fault: Fault | None) -> Iterator[None]:
    """The cases run against the stages with this fault."""
    names = [f"carousel_server.{stage}" for stage in STAGES]
    kept = {name: sys.modules[name] for name in names}
    try:
        for stage, name in zip(STAGES, names, strict=True):
            sys.modules[name] = _module(name, stage, fault)
        replay.Reply = sys.modules["carousel_server.reply"].Reply  # type: ignore[attr-defined]
        cases.StopMatcher = sys.modules["carousel_server.stop"].StopMatcher  # type: ignore[attr-defined]
        yield
    finally:
        sys.modules.update(kept)
        replay.Reply = kept["carousel_server.reply"].Reply  # type: ignore[attr-defined]
        cases.StopMatcher = kept["carousel_server.stop"].StopMatcher  # type: ignore[attr-defined]


def _module(name: str, stage: str, fault: Fault | None) -> ModuleType:
    path = PACKAGE / f"{stage}.py"
    source = path.read_text(encoding="utf-8")
    if fault is not None and fault.stage == stage:
        assert source.count(fault.right) == 1, (
            f"{fault.right!r} stands {source.count(fault.right)} times in {path.name}"
        )
        source = source.replace(fault.right, fault.wrong)
    spec = importlib.util.spec_from_loader(name, loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def failing_case(fault: Fault | None) -> str | None:
    """The first case that fails with this fault, None when all pass."""
    with planted(fault):
        for reply in cases.REPLIES:
            if _fails(cases.test_a_reply_is_read_the_same_at_every_split_point, reply):
                return reply.id
        for name, test in vars(cases).items():
            if hasattr(test, "case_numbers") and not inspect.signature(test).parameters and _fails(test):
                return f"{'/'.join(test.case_numbers)} {name}"
    return None


def _fails(test: object, *arguments: object) -> bool:
    try:
        test(*arguments)  # type: ignore[operator]
    except Exception:
        return True
    return False


if __name__ == "__main__":
    for planted_fault in [None, *FAULTS]:
        print(f"{failing_case(planted_fault)}  <-  {planted_fault}")
