"""Random orders of everything that can happen to the core, against a model of what must hold after each step."""

import zlib
from array import array
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from carousel_server.engine.byte_vocabulary import ByteVocabulary
from carousel_server.engine.protocol import EngineError
from carousel_server.engine.uniform import UniformEngine
from carousel_server.failure import Failure
from carousel_server.integrity import sums
from carousel_server.limits import EngineSettings, Limits, PrefixCacheLimits, SessionLimits
from carousel_server.local_turn import LocalTurn
from carousel_server.philox import uniform
from carousel_server.turn import Completion, Failed, Message, RngState, Settings, TextDelta
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.server.core_kit import Bench, prepare

STEPS = 20_000

ACTIONS = ["create_session"] + ["ask"] * 6 + ["work"] * 5 + ["work_long"] * 2 + ["serve"] * 5 + ["serve_all"]
ACTIONS += ["submit_late", "cancel", "delete", "time", "fault", "push_limits"]
picks = st.integers(0, 1000)
limits = st.builds(
    lambda active, queued, sessions, session_bytes, entries, checkpoint, response: Limits(
        active_requests=active,
        queued_requests=queued,
        sessions=SessionLimits(count=sessions, bytes=session_bytes, idle=50),
        prefix_cache=PrefixCacheLimits(count=entries, bytes=280_000, idle=50),
        checkpoint_bytes=checkpoint,
        response_bytes=response,
    ),
    st.integers(1, 4),
    st.integers(0, 4),
    st.sampled_from([1, 3, 5]),
    st.sampled_from([6_000, 30_000, 30_000]),
    st.sampled_from([0, 1, 4, 4]),
    st.sampled_from([9_000, 14_000, 60_000]),
    st.sampled_from([1024, 1 << 20]),
)


def oracle(prompt: tuple[int, ...], rng: RngState, temperature: float, tokens: int) -> str:
    """The whole reply, computed alone: what the engine must say whatever happened around it."""
    checksum, text = zlib.crc32(array("q", prompt).tobytes()), []
    for n in range(tokens):
        draw = int(uniform(rng.seed, rng.draws + n) * 2**24) if temperature else 0
        letter = ord("a") + (checksum + draw) % 26
        text.append(chr(letter))
        checksum = zlib.crc32(array("q", [letter]).tobytes(), checksum)
    return "".join(text)


class FaultyEngine(UniformEngine):
    """Fails where the test says; a failed step leaves its sequence unusable and the others as they were."""

    def __init__(self, slots: int, drafts: int) -> None:
        super().__init__(ByteVocabulary(), slots=slots, drafts=drafts)
        self.faults: set[str] = set()

    def _fault(self, where: str) -> None:
        if where in self.faults:
            self.faults.discard(where)
            raise EngineError(f"made to fail in {where}")

    def create(self, capacity):
        self._fault("create")
        return super().create(capacity)

    def prefill(self, seq, tokens):
        self._fault("prefill")
        super().prefill(seq, tokens)

    def step(self, seq, token, sampler, drafts):
        self._fault("step")
        return super().step(seq, token, sampler, drafts)

    def suspend(self, seq):
        self._fault("suspend")
        super().suspend(seq)

    def resume(self, seq):
        self._fault("resume")
        super().resume(seq)

    def snapshot(self, seq):
        self._fault("snapshot")
        return super().snapshot(seq)


@dataclass(eq=False)
class Client:
    """What one client asked for and has read."""

    turn: LocalTurn
    session: str | None
    temperature: float
    tokens: int = 0
    expected: str = ""
    text: str = ""
    end: Completion | Failed | None = None
    claimed: bool = False


@dataclass
class Turns:
    """Who ran when, to see that turns go round."""

    log: list[object] = field(default_factory=list)
    last: dict[object, int] = field(default_factory=dict)
    since: dict[object, int] = field(default_factory=dict)  # when it became active


class CoreMachine(RuleBasedStateMachine):
    """Rules are what clients, the operator, the clock and the engine may do; the worker's turns are one of them."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        start = Limits(
            active_requests=3,
            queued_requests=3,
            sessions=SessionLimits(count=4, bytes=30_000, idle=50),
            prefix_cache=PrefixCacheLimits(count=3, bytes=280_000, idle=50),
        )
        self.engine = FaultyEngine(slots=2, drafts=2)
        small_queue = EngineSettings(context_tokens=8192, output_queue_bytes=4096)
        self.bench = Bench(limits=start, settings=small_queue, engine=self.engine, chunk=128)
        self.histories: dict[str, tuple[Message, ...]] = {}
        self.rngs: dict[str, RngState] = {}
        self.turns = Turns()
        self.violations: list[str] = []  # what was seen inside the worker, which outlives any error of one request
        self.commits: dict[str, int] = {}
        self.open: list[Client] = []
        self._watch()

    def _watch(self) -> None:
        """See admissions and turns as they happen."""
        core, worker = self.bench.core, self.bench.worker
        admit, turn, postpone = core.admit, worker._turn, core.postpone

        def watched_admit(now):
            head = core.queue[0] if core.queue else None
            record = admit(now)
            if record is not None and record is not head:
                self.violations.append("admission passed over the head of the queue")
            return record

        def watched_turn(job):
            self._check_round(job)
            return turn(job)

        def watched_postpone(record, now):
            postpone(record, now)
            if record.phase == "queued" and core.queue[0] is not record:
                self.violations.append("a postponed request lost its place")

        core.admit, worker._turn, core.postpone = watched_admit, watched_turn, watched_postpone

    def _check_round(self, job) -> None:
        """Between two turns of a job, every other job that was there all along had exactly one."""
        turns, now = self.turns, len(self.turns.log)
        active = [*self.bench.worker._jobs, job]
        for other in active:
            turns.since.setdefault(other, now)
        before = turns.last.get(job)
        if before is not None:
            for other in active:
                if other is not job and turns.since[other] <= before and not other.record.cancelled:
                    count = turns.log[before + 1 :].count(other)
                    if count != 1:
                        self.violations.append(f"{count} turns of another request between two of one")
        turns.last[job] = now
        turns.log.append(job)

    def _some_session(self, pick):
        """Mostly one that is there, sometimes one that went."""
        there = [session.id for session in self.bench.core.sessions if session.turn is None or pick % 5 == 0]
        known = there if there and pick % 8 else list(self.histories)
        return known[pick % len(known)] if known else None

    @rule(action=st.sampled_from(ACTIONS), data=st.data())
    def act(self, action, data):
        """One rule for all, so that every run has every kind of event, as often as ACTIONS says."""
        getattr(self, action)(data.draw)

    def create_session(self, draw):
        seed, size = draw(st.none() | st.integers(0, 2**64 - 1)), draw(st.integers(0, 300))
        try:
            chosen = Settings() if seed is None else Settings(seed=seed)
            view = self.bench.service.create_session("", chosen, "s" * size or None, (), None)
        except Failure as failure:
            full = self.bench.core.sessions.in_flight == len(self.bench.core.sessions)
            assert (failure.code, full) == ("sessions_full", True)  # noqa: PT017
            return
        kept = self.bench.core.sessions.get(view.id, "")
        self.histories[view.id], self.rngs[view.id] = kept.history, kept.rng
        self.commits[view.id] = 0

    def ask(self, draw):
        """A new request; with no tokens it stays in preparing."""
        session = None if draw(st.sampled_from([False, False, False, True])) else self._some_session(draw(picks))
        temperature, seed = draw(st.sampled_from([0.0, 1.0])), draw(st.none() | st.integers(0, 5))
        options = {"temperature": temperature} | ({} if seed is None else {"seed": seed})
        text = draw(st.sampled_from(["hi", "hello there", "x" * 300]))
        tokens = draw(st.integers(0, 20) | st.integers(40, 50))
        try:
            turn = self.bench.begin(session, text=text, stream=draw(st.booleans()), **options)
        except Failure as failure:
            assert failure.code in ("session_busy", "session_expired")  # noqa: PT017
            return
        if session is not None:
            assert turn.history == self.histories[session]
            assert turn.rng == (self.rngs[session] if seed is None else RngState(seed))
        client = Client(turn, session, temperature)
        self.open.append(client)
        if tokens:
            self._submit(client, tokens)

    def _submit(self, client, tokens):
        prepared = prepare(client.turn, max_tokens=tokens)
        try:
            client.turn.submit(prepared)
        except Failure as failure:
            assert failure.code in ("queue_full", "limits_exceeded", "cancelled", "server_shutdown")  # noqa: PT017
            self._close(client)
            return
        client.tokens = tokens
        client.expected = oracle(prepared.prompt_tokens, prepared.rng, client.temperature, tokens)

    def submit_late(self, draw):
        waiting = [client for client in self.open if not client.tokens]
        if waiting:
            self._submit(waiting[draw(picks) % len(waiting)], draw(st.integers(1, 20)))

    def work(self, draw):
        self.bench.steps(draw(st.integers(1, 6)))

    def work_long(self, draw):
        self.bench.steps(draw(st.integers(10, 80)))

    def serve_all(self, draw):
        """Everybody reads, and closes what has ended."""
        for client in list(self.open):
            self.serve_one(client, "claim and close")

    def serve(self, draw):
        """A writer takes what waits, and goes on as a writer does, or breaks off."""
        if self.open:
            then = draw(st.sampled_from([*["claim"] * 3, *["claim and close"] * 6, "look", "close"]))
            self.serve_one(self.open[draw(picks) % len(self.open)], then)

    def serve_one(self, client, then):
        for event in client.turn.record.output.take():
            assert client.end is None, "nothing follows the last event"
            if isinstance(event, TextDelta):
                client.text += event.text
            elif isinstance(event, Completion | Failed):
                client.end = event
            if isinstance(event, Completion) and not client.turn.record.request.stream:
                client.text = event.message.content
        assert client.expected.startswith(client.text), "another request's tokens or draws"
        if "claim" in then and isinstance(client.end, Completion):
            self._claim(client)
        if "close" in then and (client.end is not None or then == "close"):
            self._close(client)

    def _claim(self, client):
        was = client.turn.record.phase
        claimed = client.turn.claim(client.end)
        assert claimed == (was == "completing")
        if not claimed:
            return
        assert client.text == client.expected == client.end.message.content
        client.claimed = True
        if client.session is None:
            return
        prepared, end = client.turn.record.prepared, client.end
        drawn = client.tokens if client.temperature else 0
        assert end.rng == RngState(prepared.rng.seed, prepared.rng.draws + drawn)
        self.histories[client.session] = (*prepared.messages, Message("assistant", client.expected))
        self.rngs[client.session] = end.rng
        self.commits[client.session] += 1

    def cancel(self, draw):
        if not self.open:
            return
        client = self.open[draw(picks) % len(self.open)]
        client.turn.cancel(draw(st.sampled_from(["api", "disconnect", "write_timeout", "time_out", "shutdown"])))
        assert client.turn.record.phase in ("claimed", "cancelled", "failed")
        assert (client.turn.record.phase == "claimed") == client.claimed

    def _close(self, client: Client) -> None:
        client.turn.close()
        self.open.remove(client)

    def delete(self, draw):
        session = self._some_session(draw(picks))
        if session is not None:
            try:
                self.bench.service.delete_session(session, "")
            except Failure as failure:
                assert failure.code in ("session_busy", "session_expired")  # noqa: PT017

    def time(self, draw):
        self.bench.clock.advance(draw(st.sampled_from([0.1, 5.0, 60.0])))
        with self.bench.core.lock:
            self.bench.core.sweep(self.bench.clock())

    def fault(self, draw):
        self.engine.faults.add(draw(st.sampled_from(["create", "prefill", "step", "suspend", "resume", "snapshot"])))

    def push_limits(self, draw):
        assert self.bench.service.set_limits(self.bench.service.limits_generation + 1, draw(limits))

    @invariant()
    def bytes_add_up(self):
        CoreMachine.steps += 1
        assert self.violations == []
        core = self.bench.core
        with core.lock:
            assert sums(core) == []
            idle = [s for s in core.sessions if s.turn is None]
            over = len(core.sessions) > core.limits.sessions.count or core.sessions.bytes > core.limits.sessions.bytes
            assert not (over and idle), "an idle session outlives the limits"
            assert len(core.cache) <= core.limits.prefix_cache.count
            assert core.cache.bytes <= core.limits.prefix_cache.bytes
        assert self.engine.free_slots() >= 0

    @invariant()
    def sessions_hold_the_accepted_turns(self):
        for session in self.bench.core.sessions:
            assert session.history == self.histories[session.id]
            assert session.rng == self.rngs[session.id]
            assert session.turns == self.commits[session.id]

    def teardown(self):
        self.engine.faults.clear()
        for client in list(self.open):
            self._close(client)
        self.bench.idle()


@pytest.mark.timeout(1800)  # 40 s of one free core
def test_the_core_keeps_its_promises_in_any_order_of_events():
    CoreMachine.steps = 0
    run_state_machine_as_test(
        CoreMachine,
        settings=settings(
            max_examples=260,
            stateful_step_count=90,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert CoreMachine.steps >= STEPS
