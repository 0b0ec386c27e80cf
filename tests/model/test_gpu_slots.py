"""Slots, host memory and what runs beside a step, on the GPU with the embedded model."""

import time

import pytest
import torch

from tests.model.engine_kit import GREEDY, draft_rows, eager, random_ids

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu():
    from carousel_server.engine import load

    return load("embedded", context_tokens=2048, slots=2, drafts=2, device="cuda", saved_bytes=2**28)


def begun(gpu, seed, rows):
    seq = gpu.create(gpu.info.context_tokens)
    gpu.prefill(seq, random_ids(seed, rows, 3000))
    return seq, [gpu.select(seq, GREEDY).token]


def alone(gpu, seed, rows, count):
    seq, out = begun(gpu, seed, rows)
    while len(out) < count:
        out += [s.token for s in gpu.step(seq, out[-1], GREEDY, 0)]
    gpu.release(seq)
    return out


def test_three_chats_in_turn_in_one_slot_say_what_they_say_alone(gpu):
    plain = [alone(gpu, seed, rows, 40) for seed, rows in ((1, 700), (2, 30), (3, 64))]
    block = gpu.create(8)  # leaves one slot
    chats = []
    for seed, rows in ((1, 700), (2, 30), (3, 64)):
        chats.append(begun(gpu, seed, rows))
        gpu.suspend(chats[-1][0])
    for _ in range(39):
        for seq, out in chats:
            gpu.resume(seq)
            out += [s.token for s in gpu.step(seq, out[-1], GREEDY, 0)]
            gpu.suspend(seq)
    assert [out for _, out in chats] == plain
    for seq in (block, *(seq for seq, _ in chats)):
        gpu.release(seq)
    assert gpu.saves.pages.free == gpu.saves.pages.count


def test_a_slot_that_is_taken_while_its_last_sequence_is_still_on_its_way_out_keeps_nothing_of_it(gpu):
    plain = [alone(gpu, seed, 1500, 20) for seed in (4, 5)]
    for _ in range(20):
        first, out = begun(gpu, 4, 1500)
        gpu.suspend(first)
        second, other = begun(gpu, 5, 1500)  # the same slot, at once
        gpu.resume(first)
        while len(out) < 20:
            out += [s.token for s in gpu.step(first, out[-1], GREEDY, 0)]
            other += [s.token for s in gpu.step(second, other[-1], GREEDY, 0)]
        assert [out, other[:20]] == plain
        gpu.release(first)
        gpu.release(second)


def test_snapshots_stay_what_they_were_while_the_sequence_goes_on_and_others_take_their_pages(gpu):
    seq, out = begun(gpu, 6, 500)
    taken = []
    for _ in range(12):
        taken.append((gpu.snapshot(seq), len(out)))
        if len(taken) % 3 == 0:
            del taken[-2]  # its pages go to the next ones
        out += [s.token for s in gpu.step(seq, out[-1], GREEDY, 0)]
    gpu.release(seq)
    for snapshot, length in taken:
        again = gpu.create(2048)
        gpu.adopt(again, snapshot)
        found = [*out[: length - 1], gpu.select(again, GREEDY).token]
        while len(found) < len(out):
            found += [s.token for s in gpu.step(again, found[-1], GREEDY, 0)]
        assert found == out
        gpu.release(again)


def test_a_step_of_another_slot_does_not_wait_for_a_load(gpu):
    """A load of everything behind a long kernel: the other slot's step ends before it."""
    first, _ = begun(gpu, 7, 1500)
    second, out = begun(gpu, 8, 100)
    gpu.suspend(first)
    torch.cuda.synchronize()
    with torch.cuda.stream(gpu.saves._in):
        torch.cuda._sleep(400_000_000)  # about 0.2 s
    at = time.perf_counter()
    gpu.resume(first)
    gpu.step(second, out[-1], GREEDY, 0)
    assert time.perf_counter() - at < 0.1
    gpu.step(first, 5, GREEDY, 0)
    assert time.perf_counter() - at > 0.1
    gpu.release(first)
    gpu.release(second)


def test_a_request_that_comes_while_experts_arrive_says_what_later_ones_say(monkeypatch):
    from carousel_server.engine import expert_loading, load

    copy = expert_loading._copy

    def slow(place, parts):
        time.sleep(0.01)
        copy(place, parts)

    monkeypatch.setattr(expert_loading, "_copy", slow)
    engine = load("embedded", context_tokens=256, slots=1, drafts=2, device="cuda")
    seq = engine.create(64)
    assert not engine.pool.loading._sent[-1].is_set()
    first = engine.step(seq, 7, GREEDY, 0)[-1].token
    assert engine.pool.loading is None
    engine.release(seq)
    assert alone(engine, 1, 100, 30) == alone(engine, 1, 100, 30)
    seq = engine.create(64)
    assert engine.step(seq, 7, GREEDY, 0)[-1].token == first


def test_a_long_sequence_saved_twice_is_the_one_that_was_saved_once(gpu):
    """Drafts in some steps only, so that rows wait for the draft head over several saves."""

    def text(between):
        seq, out = begun(gpu, 9, 1900)
        eager(seq)
        for drafts in (2, 0, 0, 1, 0, 0, 0, 0, 2, 2) * 6:
            out += [s.token for s in gpu.step(seq, out[-1], GREEDY, drafts)]
            if between:
                gpu.suspend(seq)
                gpu.resume(seq)
        rows = [t.clone() for t in draft_rows(gpu, seq, seq.length - seq.waiting)]
        gpu.release(seq)
        return out, rows

    (out, rows), (wanted, as_wanted) = text(True), text(False)
    assert out == wanted
    assert all(torch.equal(a, b) for a, b in zip(rows, as_wanted, strict=True))
