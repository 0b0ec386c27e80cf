"""Any order of calls over several sequences equals the straight run of what each was fed."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.model.engine_kit import GREEDY, kept_logits, open_engine
from tests.model.oracle.make_tiny import make_tiny

CAPACITY, SLOTS = 80, 2
TOLERANCE = 2e-3  # the rounding of other chunks and row counts, through 4 random layers; logits have a deviation of 1.5
_engines: dict[str, object] = {}


def shared_engines():
    """(the one under test, one for straight runs): loading takes longer than a run."""
    if not _engines:
        import tempfile

        folder = make_tiny(tempfile.mkdtemp(prefix="orders-"), layers=4)
        _engines["tested"] = open_engine(folder, context_tokens=CAPACITY, slots=SLOTS, drafts=3)
        _engines["straight"] = open_engine(folder, context_tokens=CAPACITY, slots=1, drafts=0)
    return _engines["tested"], _engines["straight"]


class Orders(RuleBasedStateMachine):
    """Prefill, decode with and without drafts, save, restore, fork and rollback, on up to four sequences."""

    def __init__(self):
        super().__init__()
        self.engine, self.straight = shared_engines()
        self.seqs, self.fed = [], []

    def pick(self, at):
        """A sequence, made live; another one gives its slot if need be."""
        i = at % len(self.seqs)
        if not self.seqs[i].live:
            self.make_room()
            self.engine.resume(self.seqs[i])
        return i, self.seqs[i]

    def make_room(self):
        if not self.engine.free_slots():
            self.engine.suspend(next(s for s in self.seqs if s.live))

    @precondition(lambda self: len(self.seqs) < 4)
    @rule(tokens=st.lists(st.integers(0, 511), min_size=1, max_size=20))
    def start(self, tokens):
        self.make_room()
        self.seqs.append(self.engine.create(CAPACITY))
        self.fed.append(list(tokens))
        self.engine.prefill(self.seqs[-1], tokens)

    @precondition(lambda self: self.seqs)
    @rule(at=st.integers(0, 3), tokens=st.lists(st.sampled_from([3, 77, 490, 500]), min_size=1, max_size=20))
    def prefill(self, at, tokens):
        i, seq = self.pick(at)
        tokens = tokens[: CAPACITY - seq.length]
        if tokens:
            self.engine.prefill(seq, tokens)
            self.fed[i] += tokens

    @precondition(lambda self: self.seqs)
    @rule(at=st.integers(0, 3), token=st.integers(0, 511), drafts=st.integers(0, 3), steps=st.integers(1, 4))
    def decode(self, at, token, drafts, steps):
        i, seq = self.pick(at)
        for _ in range(steps):
            if seq.length == CAPACITY:
                return
            chosen = self.engine.step(seq, token, GREEDY, drafts)
            self.fed[i] += [token, *(s.token for s in chosen[:-1])]
            token = chosen[-1].token

    @precondition(lambda self: any(s.live for s in self.seqs))
    @rule(at=st.integers(0, 3))
    def suspend(self, at):
        live = [s for s in self.seqs if s.live]
        self.engine.suspend(live[at % len(live)])

    @precondition(lambda self: 0 < len(self.seqs) < 4)
    @rule(at=st.integers(0, 3))
    def fork(self, at):
        i, seq = self.pick(at)
        snapshot = self.engine.snapshot(seq)
        self.make_room()
        twin = self.engine.create(CAPACITY)
        self.engine.adopt(twin, snapshot)
        self.seqs.append(twin)
        self.fed.append(list(self.fed[i]))

    @precondition(lambda self: self.seqs)
    @rule(at=st.integers(0, 3), back=st.integers(0, 3))
    def rollback(self, at, back):
        i, seq = self.pick(at)
        length = max(seq.floor, seq.length - back)
        self.engine.rollback(seq, length)
        del self.fed[i][length:]

    @precondition(lambda self: len(self.seqs) > 1)
    @rule(at=st.integers(0, 3))
    def release(self, at):
        i = at % len(self.seqs)
        self.engine.release(self.seqs.pop(i))
        del self.fed[i]

    @invariant()
    def lengths_and_slots_add_up(self):
        assert [s.length for s in self.seqs] == [len(f) for f in self.fed]
        assert [s.tokens for s in self.seqs] == self.fed
        assert self.engine.free_slots() == SLOTS - sum(s.live for s in self.seqs)

    def teardown(self):
        for i in range(len(self.seqs)):
            _, seq = self.pick(i)
            straight = self.straight.create(CAPACITY)
            self.straight.prefill(straight, self.fed[i])
            worst = (kept_logits(self.engine, seq) - kept_logits(self.straight, straight)).abs().max().item()
            self.straight.release(straight)
            assert worst <= TOLERANCE, f"{len(self.fed[i])} rows, |difference| {worst:.1e}"
        for seq in self.seqs:
            self.engine.release(seq)
        assert self.engine.free_slots() == SLOTS


Orders.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyOrderOfCallsEqualsTheStraightRun = Orders.TestCase
