"""A core with a test engine and no threads: the test makes the clock, the worker's turns and the client's reading."""

from dataclasses import dataclass, field, replace
from itertools import count

from carousel_server.core import Core
from carousel_server.engine.byte_vocabulary import ByteVocabulary
from carousel_server.engine.host import HostEngine
from carousel_server.engine.uniform import UniformEngine
from carousel_server.identity import Identity
from carousel_server.integrity import problems
from carousel_server.job import ReplyMaker
from carousel_server.limits import EngineSettings, Limits
from carousel_server.local_service import LocalService
from carousel_server.local_turn import LocalTurn
from carousel_server.memory_plan import MemoryPlan, plan
from carousel_server.pace import Pace
from carousel_server.presets import PRESETS
from carousel_server.turn import (
    Completion,
    Event,
    Failed,
    Message,
    PreparedTurn,
    RngState,
    Settings,
    TextDelta,
    TurnRequest,
)
from carousel_server.worker import Worker


class Clock:
    """Time that stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class PlainReply:
    """Bytes to text without stop strings or tools; ends with `length` at `room` raw bytes."""

    def __init__(self, vocabulary: ByteVocabulary, room: int) -> None:
        self.finish = None
        self.text = ""
        self.logprobs = ()
        self.raw_bytes = 0
        self._vocabulary, self._room = vocabulary, room

    def feed(self, selected):
        content = self._vocabulary.token_bytes(selected.token)
        if self.raw_bytes + len(content) > self._room:
            self.finish = "length"
            return []
        self.raw_bytes += len(content)
        self.text += content.decode()
        return [TextDelta(content.decode())] if content else []

    def close(self, reason):
        self.finish = self.finish or reason
        return []

    @property
    def message(self) -> Message:
        return Message("assistant", self.text)


def counting_entropy():
    """Bytes that never repeat and are the same in every run."""
    numbers = count(1)
    return lambda n: next(numbers).to_bytes(8, "little").ljust(n, b"\x5a")[:n]


@dataclass
class Reading:
    """What a client got from one turn."""

    text: str = ""
    events: list[Event] = field(default_factory=list)
    end: Completion | Failed | None = None

    @property
    def code(self) -> str | None:
        return self.end.code if isinstance(self.end, Failed) else None


class Bench:
    """One server without HTTP. `run()` gives turns until nothing is left to do."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        settings: EngineSettings | None = None,
        engine: HostEngine | None = None,
        reply: ReplyMaker | None = None,
        slots: int = 4,
        drafts: int = 0,
        chunk: int = 256,
    ) -> None:
        self.clock = Clock()
        self.vocabulary = ByteVocabulary()
        self.engine = engine or UniformEngine(self.vocabulary, slots=slots, drafts=drafts)
        self.plan = self._plan(limits or Limits(), settings or EngineSettings(context_tokens=8192))
        entropy = counting_entropy()
        self.core = Core(self.plan.limits, self.plan.engine, self.engine.info, 8192)
        self.service = LocalService(
            self.core,
            plan=self.plan,
            replan=lambda new: self._plan(new, self.plan.engine),
            identity=Identity(0, entropy),
            entropy=entropy,
            version="test",
            clock=self.clock,
        )
        self.service.attach(self.engine, lambda: None)
        make = reply or (lambda prepared, room: PlainReply(self.vocabulary, room))
        self.worker = Worker(self.core, self.engine, make, Pace(chunk), self.clock)

    @staticmethod
    def _plan(limits: Limits, settings: EngineSettings) -> MemoryPlan:
        return plan(PRESETS["tiny"], limits, settings, device="cpu")

    def session(self, key: str = "", **settings) -> str:
        return self.service.create_session(key, Settings(**settings), None, (), None).id

    def begin(self, session: str | None = None, *, text: str = "hello", **options) -> LocalTurn:
        return self.service.begin(request(text, session, **options))

    def submit(self, turn: LocalTurn, *, max_tokens: int | None = None, boundaries: tuple[int, ...] | None = None):
        turn.submit(prepare(turn, max_tokens=max_tokens or 8, boundaries=boundaries))

    def start(self, session: str | None = None, *, max_tokens: int = 8, boundaries=None, **options) -> LocalTurn:
        turn = self.begin(session, **options)
        try:
            self.submit(turn, max_tokens=max_tokens, boundaries=boundaries)
        except Exception:
            turn.close()
            raise
        return turn

    def run(self, most: int = 100_000) -> None:
        for _ in range(most):
            if not self.worker.run_once():
                return
        raise AssertionError(f"still working after {most} turns")

    def steps(self, n: int) -> None:
        for _ in range(n):
            self.worker.run_once()

    def read(self, turn: LocalTurn) -> Reading:
        """Take what waits, without claiming."""
        reading = Reading()
        for event in turn.record.output.take():
            reading.events.append(event)
            if isinstance(event, TextDelta):
                reading.text += event.text
            if isinstance(event, Completion | Failed):
                reading.end = event
            if isinstance(event, Completion) and not turn.record.request.stream:
                reading.text = event.message.content
        return reading

    def finish(self, turn: LocalTurn) -> Reading:
        """Run everything, read, claim and close."""
        self.run()
        reading = self.read(turn)
        if isinstance(reading.end, Completion):
            assert turn.claim(reading.end)
        turn.close()
        return reading

    def chat(self, session: str | None = None, **options) -> Reading:
        return self.finish(self.start(session, **options))

    def idle(self) -> None:
        """Nothing is held any more."""
        self.run()
        with self.core.lock:
            assert problems(self.core, self.engine) == []
        assert self.engine.sequences == 0


def request(text: str, session: str | None = None, *, id: str = "", key: str = "", stream: bool = True, **settings):
    return TurnRequest(
        id=id,
        key=key,
        kind="chat",
        messages=(Message("user", text),),
        prompt=None,
        tools=(),
        settings=Settings(**settings),
        stream=stream,
        include_usage=False,
        session_id=session,
        given=frozenset(settings),
    )


def render(messages: tuple[Message, ...]) -> list[int]:
    """A template without control tokens: what is before a message never depends on it."""
    return list("".join(f"[{m.role}]{m.content}" for m in messages).encode())


def prepare(turn: LocalTurn, *, max_tokens: int = 8, boundaries: tuple[int, ...] | None = None) -> PreparedTurn:
    asked = turn.record.request
    messages = (*turn.history, *asked.messages)
    head = len(render(messages[:-1]))
    tokens = tuple(render(messages) + list(b"[assistant]"))
    if boundaries is None:
        boundaries = (head,) if head else ()
    return PreparedTurn(
        request=replace(asked, settings=turn.settings, tools=turn.tools),
        messages=messages,
        prompt_tokens=tokens,
        boundaries=boundaries,
        max_new_tokens=max_tokens,
        capacity_tokens=len(tokens) + max_tokens,
        rng=turn.rng,
    )


__all__ = ["Bench", "Clock", "PlainReply", "Reading", "RngState", "prepare", "render", "request"]
