"""Same seed, same text, on the trained embedded model: whatever runs beside it, however many slots, cached or not."""

from dataclasses import replace

import pytest
from carousel_server.allocations import cpu_state
from carousel_server.build import reply_maker
from carousel_server.engine import EMBEDDED, load
from carousel_server.limits import EngineSettings, Limits, PrefixCacheLimits
from carousel_server.memory_plan import plan
from carousel_server.presets import PRESETS
from carousel_server.prompt import PromptTemplate
from carousel_server.tokenizer import Tokenizer
from carousel_server.turn import Completion, Message, PreparedTurn

from tests.server.core_kit import Bench

TURNS = ("Tell me about the sea and the ships that lie in the harbour until the evening wind.", "And what then?")
OFF = Limits(prefix_cache=PrefixCacheLimits(count=0))
TOKENS = 10

pytestmark = pytest.mark.timeout(900)  # about 20 s of one free core


@pytest.fixture(scope="module")
def text_side():
    tokenizer = Tokenizer.load(EMBEDDED)
    return tokenizer, PromptTemplate.load(EMBEDDED, tokenizer)


@pytest.fixture(scope="module")
def engines():
    """Engines by (slots, drafts), loaded once."""
    made = {}

    def get(slots: int, drafts: int):
        key = (slots, drafts)
        if key not in made:
            made[key] = load("embedded", context_tokens=512, slots=slots, drafts=drafts, threads=1)
        return made[key]

    return get


class RealBench(Bench):
    """The core with the real engine, template and reply."""

    def __init__(self, engine, text_side, **options) -> None:
        self.tokenizer, self.template = text_side
        super().__init__(engine=engine, reply=reply_maker(self.tokenizer), **options)

    def begin_turn(self, session: str, text: str, *, stream: bool = True):
        turn = self.begin(session, text=text, stream=stream)
        rendered = self.template.render((*turn.history, *turn.record.request.messages), ())
        return self.submit_tokens(turn, rendered.tokens, rendered.boundaries)

    def submit_tokens(self, turn, tokens, boundaries=()):
        turn.submit(
            PreparedTurn(
                request=replace(turn.record.request, settings=turn.settings, tools=turn.tools),
                messages=(*turn.history, *turn.record.request.messages),
                prompt_tokens=tokens,
                boundaries=boundaries,
                max_new_tokens=TOKENS,
                capacity_tokens=len(tokens) + TOKENS,
                rng=turn.rng,
            )
        )
        return turn

    def say(self, tokens, boundaries=(), **settings):
        """Text, cached tokens, and how many drafts were proposed and accepted for them."""
        stats = self.engine.stats
        before = stats.drafts_proposed, stats.drafts_accepted
        reading = self.finish(self.submit_tokens(self.begin(**settings), tokens, boundaries))
        self.idle_real()
        drafts = stats.drafts_proposed - before[0], stats.drafts_accepted - before[1]
        return reading.text, reading.end.usage.cached_tokens, drafts

    def conversation(self, temperature: float, *, beside: int = 0, stream: bool = True, push: bool = False):
        """Both turns' texts, and the RNG that the session was left with."""
        session = self.session(seed=77, temperature=temperature)
        texts = []
        for text in TURNS:
            others = [self.begin_turn(self.session(seed=n, temperature=1.0), f"Count to {n}.") for n in range(beside)]
            turn = self.begin_turn(session, text, stream=stream)
            if push:
                self.steps(3)
                fewer = Limits(active_requests=1, prefix_cache=PrefixCacheLimits(count=1))
                assert self.service.set_limits(self.service.limits_generation + 1, fewer)
            reading = self.finish(turn)
            assert isinstance(reading.end, Completion)
            texts.append(reading.text)
            for other in others:
                self.finish(other)
        rng = self.core.sessions.get(session, "").rng
        self.idle_real()
        return texts, rng

    def idle_real(self) -> None:
        self.engine.sequences = 0  # the real engine counts slots, which the check looks at
        self.idle()


@pytest.mark.parametrize("temperature", [0.0, 0.9], ids=["greedy", "sampled"])
def test_the_text_is_the_same_in_every_company(temperature: float, engines, text_side):
    def run(slots: int = 4, drafts: int = 2, limits: Limits | None = None, chunk: int = 256, **options):
        bench = RealBench(engines(slots, drafts), text_side, limits=limits, chunk=chunk)
        return bench.conversation(temperature, **options)

    alone = run()
    assert all(alone[0])
    assert alone[1].draws == (0 if temperature == 0 else alone[1].draws)
    variants = {
        "beside three others": run(beside=3),
        "in one slot, beside three others": run(slots=1, beside=3),
        "in one slot": run(slots=1),
        "without the prefix cache": run(limits=OFF),
        "not streamed": run(stream=False),
        "with limits pushed meanwhile": run(push=True, beside=3),
        "in the smallest chunks": run(chunk=64, beside=1),
        "without the draft head": run(drafts=0),
        "without either": run(drafts=0, limits=OFF),
    }
    assert {name: found for name, found in variants.items() if found != alone} == {}


def test_drafts_were_verified_and_sequences_moved(engines, text_side):
    """What the comparison above relies on did happen."""
    greedy = RealBench(engines(4, 2), text_side)
    before = greedy.engine.stats.drafts_accepted
    greedy.conversation(0.0)
    assert greedy.engine.stats.drafts_accepted > before
    assert greedy.core.stats.counts[("tokens", "cached")] > 0
    one = RealBench(engines(1, 2), text_side)
    before = one.engine.stats.saves
    one.conversation(0.9, beside=2)
    assert one.engine.stats.saves > before
    sampled = one.engine.stats.drafts_proposed
    one.conversation(0.9)
    assert one.engine.stats.drafts_proposed == sampled


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "seed": 5}], ids=["greedy", "sampled"])
def test_a_prompt_that_is_wholly_cached_is_answered_as_a_cold_one(settings, engines, text_side):
    prompt = text_side[1].render((Message("user", TURNS[0]),), ()).tokens
    warm, cold = RealBench(engines(4, 2), text_side), RealBench(engines(4, 2), text_side, limits=OFF)
    # A longer prompt that has this one's end among its boundaries leaves an entry of exactly this one.
    warm.say((*prompt, *prompt[:3]), (len(prompt),), temperature=0.9, seed=6)
    text, cached, drafts = warm.say(prompt, **settings)
    assert cached == len(prompt)
    assert (text, drafts) == (cold.say(prompt, **settings)[0], cold.say(prompt, **settings)[2])


def test_an_entry_is_completed_with_the_token_that_follows_it_now(engines, text_side):
    """The draft head's last row needs the next token; another request's would show in the drafts first."""
    prompt = text_side[1].render((Message("user", TURNS[0]),), ()).tokens
    head = len(prompt) - 6
    other = (*prompt[:head], *reversed(prompt[head:]))
    warm, cold = RealBench(engines(4, 2), text_side), RealBench(engines(4, 2), text_side, limits=OFF)
    warm.say(other, (head,))
    found, expected = warm.say(prompt, (head,)), cold.say(prompt, (head,))
    assert found[1] == head
    assert (found[0], found[2]) == (expected[0], expected[2])
    assert found[2][1] > 0


def test_the_plans_figures_are_the_engines(engines):
    info = engines(4, 2).info
    tiny = PRESETS["tiny"]
    state = cpu_state(tiny, 512, 2)
    assert (info.fixed_state_bytes, info.token_state_bytes) == (state.fixed, state.token)
    assert info.vocab_size == tiny.vocab
    found = plan(tiny, Limits(), EngineSettings(context_tokens=512), device="cpu")
    assert found.sequence_bytes == info.fixed_state_bytes + 512 * info.token_state_bytes
