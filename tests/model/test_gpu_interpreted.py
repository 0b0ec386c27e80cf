"""The GPU engine without a GPU: the same files, layouts and kernels, interpreted on the CPU."""

import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from carousel_kernels.step import behind
from carousel_kernels.step import triton as step
from carousel_server import loader
from carousel_server.allocations import ALIGNMENT
from carousel_server.engine import gpu_start
from carousel_server.engine.checkpoint import Checkpoint
from carousel_server.engine.gpu import GpuEngine, GpuSequence, GpuSnapshot
from carousel_server.engine.protocol import EngineError, SamplerParams
from carousel_server.engine.saved import Saved
from carousel_server.limits import EngineSettings, GiB, Limits
from carousel_server.memory_plan import rows_by_key

from tests.model.engine_kit import GREEDY, draft_rows, drafted, eager
from tests.model.gpu_files import compare, released_layout

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def fp8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released_layout(tmp_path_factory.mktemp("released"))


def start(folder: Path, pool_bytes: int | None = None, **more):
    settings = {"context_tokens": 64, "slots": 1, "drafts": 0, "prefill_rows": 64, **more}
    return gpu_start.start(folder, expert_pool_bytes=pool_bytes, device=CPU, **settings)


@pytest.mark.parametrize(("pool_bytes", "slots"), [(None, 8), (1, 2)], ids=["resident", "pool"])
def test_an_fp8_checkpoint_from_files_has_the_cpu_engines_logits(fp8, pool_bytes, slots):
    found = start(fp8, pool_bytes)
    assert (found.pool.slots, found.pool.dtype) == (slots, torch.float8_e4m3fn)
    assert compare(fp8, found, rows=9, steps=2) < 1e-4
    selected, missed = found.pool.counts().sum(0).tolist()
    assert (missed > 0) is (slots < 8)
    assert missed <= selected


def test_missed_experts_lie_where_the_kernel_can_copy_them_from(fp8):
    found, checkpoint = start(fp8, 1), Checkpoint(fp8)
    assert bool((found.pool.source % ALIGNMENT == 0).all())
    for layer, name in itertools.product(range(4), ("gate_proj", "up_proj", "down_proj")):
        stored = checkpoint.tensor(f"model.language_model.layers.{layer}.mlp.experts.5.{name}.weight")
        assert stored.data_ptr() % ALIGNMENT, "the file itself would have done"
        held = found.pool._held[layer].parts[5][("gate_proj", "up_proj", "down_proj").index(name)]
        assert held.data_ptr() in found.pool.source[layer, 5].tolist()
        assert torch.equal(held.view(torch.uint8), stored.view(torch.uint8))


def told(call: Callable[..., None], order: list[str], name: str) -> Callable[..., None]:
    """`call`, its name first put down."""

    def telling(*arguments, **named) -> None:
        order.append(name)
        call(*arguments, **named)

    return telling


def test_the_rows_of_the_n_gram_table_are_asked_for_once_and_before_the_first_layer(fp8, monkeypatch):
    found = start(fp8)
    seq, order = found.create(8), []
    for name in ("gather", "layer"):
        real = getattr(found.forward, name)
        monkeypatch.setattr(found.forward, name, told(real, order, name))
    found.step(seq, 3, SamplerParams(), 0)
    assert order == ["gather"] * len(found.config.ngram_layers) + ["layer"] * len(found.config.layers)


def test_a_start_tells_how_far_it_is(fp8):
    told: list[tuple[float, str]] = []
    start(fp8, 1, drafts=2, progress=lambda share, what: told.append((share, what)))
    assert told[0] == (0.0, "dense weights")
    assert [what for _, what in told if "layer" in what] == [f"experts of layer {i} of 5" for i in range(1, 6)]
    assert all(a <= b for (a, _), (b, _) in itertools.pairwise(told))
    assert told[-1][0] < 1


def test_a_pool_for_all_is_loaded_beside_the_first_requests_and_goes_on_telling_how_far_it_is(fp8, caplog):
    told: list[tuple[float, str]] = []
    caplog.set_level("INFO", "carousel_server.engine.expert_loading")
    found = start(fp8, drafts=2, progress=lambda share, what: told.append((share, what)))
    assert told[-1] == (0.2, "kernels and graphs")
    found.step(found.create(4), 3, SamplerParams(), 0)
    assert found.pool.loading is None
    deadline = time.monotonic() + 30
    while found.stats.loaded < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    said = [record.getMessage().split(": ")[-1] for record in caplog.records]
    assert said == [*(f"experts of layer {i} of 5" for i in range(1, 6)), "every expert is on the GPU"]


class Lost:
    """A device that fails whatever is asked of it."""

    def __getattr__(self, name: str):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def __call__(self, *arguments, **settings):
        return self.any


SAVED = Saved(1)
CALLS: dict[str, Callable[[GpuEngine, GpuSequence], object]] = {
    "create": lambda engine, seq: engine.create(8),
    "prefill": lambda engine, seq: engine.prefill(seq, [1, 2]),
    "select": lambda engine, seq: engine.select(seq, SamplerParams()),
    "step": lambda engine, seq: engine.step(seq, 5, SamplerParams(), 0),
    "suspend": lambda engine, seq: engine.suspend(seq),
    "resume": lambda engine, seq: engine.resume(GpuSequence(8, None, saved=SAVED)),
    "snapshot": lambda engine, seq: engine.snapshot(seq),
    "adopt": lambda engine, seq: engine.adopt(GpuSequence(8, 0), GpuSnapshot((1,), SAVED, 0)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_lost_device_ends_the_process_whichever_call_meets_it(fp8, call):
    found = start(fp8, slots=2)
    seq = found.create(8)
    seq.length = 1
    found.state = found.steps = found.saves = Lost()
    with pytest.raises(EngineError, match="the device failed: CUDA error") as caught:
        CALLS[call](found, seq)
    assert caught.value.fatal
    found.release(seq)


@pytest.mark.parametrize("drafts", [0, 2])
def test_the_loader_starts_this_engine_on_a_gpu_with_the_sizes_it_planned(fp8, monkeypatch, drafts):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (4 * GiB, 4 * GiB))
    monkeypatch.setattr(gpu_start, "start", partial(gpu_start.start, device=CPU))
    each = 3 * 32 * 64
    settings = EngineSettings(context_tokens=64, drafts=drafts, expert_pool_bytes=5 * each * 3 + 1, gpu_state_slots=2)
    sketch = loader.blueprint(loader.Source(str(fp8), "torch", Limits(), settings, device="cuda"))
    told: list[tuple[float, str]] = []
    engine = loader.start_engine(sketch, lambda share, what: told.append((share, what)))
    assert isinstance(engine, GpuEngine)
    layers = 5 if drafts else 4
    assert engine.pool.slots == (5 * each * 3 + 1) // (layers * each)
    assert (engine.info.slots, engine.info.context_tokens, engine.info.max_drafts) == (2, 64, drafts)
    assert sketch.plan.sequence_bytes == engine.info.fixed_state_bytes + 64 * engine.info.token_state_bytes
    memory, planned = engine.pool.memory, rows_by_key(sketch.plan.gpu)
    assert planned["expert pool"] + planned["expert streams"] >= memory.nbytes
    assert told[0][0] < told[-1][0] < 1
    assert "GPU" in told[-1][1]


@pytest.mark.parametrize(("waiting", "room", "rows"), [(0, 3, 1), (2, 3, 1), (3, 3, 1), (1, 1, 1), (3, 1, 2)])
def test_the_streams_of_a_step_are_kept_behind_those_that_wait_and_nothing_else_is_touched(waiting, room, rows):
    control, result = torch.tensor([1, 9, 5, waiting]), torch.tensor([rows, 0, 0, 0, 0])
    logits, kept_logits = torch.randn(rows, 10), torch.zeros(2, 10)
    streams, kept = torch.randn(rows, 2, 8), torch.zeros(2, 4, 2, 8)
    step.keep(control, result, logits, kept_logits, streams, kept, room=room)
    at = behind(waiting, room)
    assert torch.equal(kept[1, at : at + rows], streams)
    assert int((kept != 0).any(-1).any(-1).sum()) == rows
    assert torch.equal(kept_logits, torch.stack([torch.zeros(10), logits[-1]]))


def test_rows_that_do_not_fit_behind_those_that_wait_are_refused():
    control, result = torch.tensor([0, 9, 5, 2]), torch.tensor([2, 0, 0, 0, 0])
    with pytest.raises(ValueError, match="2 rows behind 3 others do not fit the 4"):
        step.keep(
            control, result, torch.zeros(2, 10), torch.zeros(1, 10), torch.zeros(2, 2, 8), torch.zeros(1, 4, 2, 8),
            room=4,
        )  # fmt: skip


@pytest.mark.timeout(600)
def test_the_draft_head_lacks_nothing_after_steps_without_drafts_saves_and_a_snapshot(fp8):
    """Against a sequence that drafts in every step: the same tokens, drafts and draft head, to the bit."""
    found, prompt = start(fp8, drafts=1, slots=3), [3, 1, 4]
    always, drafts = eager(found.create(20)), {}
    found.prefill(always, prompt)
    said = [found.select(always, GREEDY).token]
    while len(said) < 8:
        at = always.length
        chosen, drafts[at] = drafted(found, always, said[-1], 1)
        said += chosen
    seq, ones = eager(found.create(8)), torch.ones(found.info.vocab_size, dtype=torch.int32)
    found.prefill(seq, prompt)
    tick, waiting = int(found.pool.tick), []
    sampled, penalised = SamplerParams(temperature=1.0, uniform=0.5), SamplerParams(presence_penalty=0.5, counts=ones)
    for token, sampler in zip(said, (GREEDY, sampled, SamplerParams(mask=ones == 1), penalised), strict=False):
        found.step(seq, token, sampler, 0)
        waiting.append(seq.waiting)
        found.suspend(seq)
        other = found.create(8)  # takes the slot that was just left
        found.resume(seq)
        found.release(other)
    found.step(seq, said[4], GREEDY, 1)  # ends at its length: there is no room for a draft
    assert [*waiting, seq.waiting] == [2, 1, 2, 1, 2]
    assert int(found.pool.tick) == tick + 5, "catching up is no step"
    assert int(found.state.applied[seq.slot]) == seq.length - 1
    assert found.stats.drafts_proposed == len(drafts)
    snapshot = found.snapshot(seq)
    found.release(seq)
    later, prompted = eager(found.create(20)), found.create(20)
    found.adopt(later, snapshot)
    while later.length < always.length:
        at = later.length
        chosen, proposed = drafted(found, later, said[at - len(prompt)], 1)
        assert chosen == said[at - len(prompt) + 1 :][: len(chosen)]
        assert proposed == drafts.get(at, proposed)
    assert found.stats.drafts_proposed > len(drafts)
    assert torch.equal(found.state.logits[later.slot], found.state.logits[always.slot])
    known = min(s.length - s.waiting for s in (later, always))
    assert known >= 9
    for mine, wanted in zip(draft_rows(found, later, known), draft_rows(found, always, known), strict=True):
        assert torch.equal(mine, wanted)
    found.adopt(prompted, snapshot)
    found.prefill(prompted, said[5:7])  # a prompt behind two rows that wait
    assert (prompted.length, prompted.waiting) == (10, 1)
    for mine, wanted in zip(draft_rows(found, prompted, 9), draft_rows(found, always, 9), strict=True):
        assert torch.allclose(mine, wanted, rtol=1e-3, atol=1e-4)
