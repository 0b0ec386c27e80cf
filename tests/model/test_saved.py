"""Sequences between a slot and host memory, the kernel interpreted: every byte, and only the bytes that are wanted."""

import gc
from unittest.mock import patch

import pytest
import torch
from carousel_server.allocations import SAVED_ROWS, SPARE, STEP_ROWS
from carousel_server.engine import EMBEDDED
from carousel_server.engine.config import read_config
from carousel_server.engine.gpu_state import SlotState
from carousel_server.engine.host_memory import HostMemory
from carousel_server.engine.protocol import EngineError
from carousel_server.engine.saved import Saved, SavedStates
from torch import Tensor

CPU = torch.device("cpu")
CAPACITY = 708  # with the spare rows, no multiple of a page's 64 tokens


@pytest.fixture
def state() -> SlotState:
    found = SlotState.allocate(
        read_config(EMBEDDED), slots=3, capacity=CAPACITY, drafts=True, device=CPU, cache_dtype=torch.bfloat16
    )
    draw = torch.Generator().manual_seed(1)
    for t in (*found.fixed(), *(t for t, _ in found.grown())):
        t.copy_(torch.randint(0, 1000, t.shape, generator=draw))
    return found


def saves(state: SlotState) -> SavedStates:
    return SavedStates(state, HostMemory(None), 2**23)


def slot(state: SlotState, number: int, length: int) -> list[Tensor]:
    """Copies of everything that a sequence of this length has in a slot."""
    rows = [t[number, :, : -(-length // per)].clone() for t, per in state.grown()]
    return [*(t[number].clone() for t in state.fixed()), *rows]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("length", [1, SAVED_ROWS, CAPACITY + SPARE])
def test_a_saved_sequence_is_the_same_in_another_slot_and_the_slots_beside_it_are_as_they_were(
    state: SlotState, length: int
) -> None:
    store, whole = saves(state), CAPACITY + SPARE
    assert len(store.staging) < store.layout.groups(whole), "the longest needs the staging area more than once"
    before, wanted = [slot(state, i, whole) for i in (0, 2)], slot(state, 0, length)
    store.load(1, store.save(0, length))
    assert same(slot(state, 1, length), wanted)
    assert all(same(slot(state, i, whole), known) for i, known in zip((0, 2), before, strict=True))


def test_two_sequences_that_take_turns_in_a_slot_both_come_back_whole(state: SlotState) -> None:
    store = saves(state)
    waits, wanted = store.save(0, 100), slot(state, 0, 100)
    for t in (*state.fixed(), *(t for t, _ in state.grown())):
        t[0] += 1
    for _ in range(3):  # each is loaded while the other lies in staging
        there = slot(state, 0, 100)
        left = store.save(0, 100)
        store.load(0, waits)
        assert same(slot(state, 0, 100), wanted)
        waits, wanted = left, there


def test_what_a_sequence_left_in_staging_is_not_sent_to_pages_that_another_has_by_now(state: SlotState) -> None:
    store = saves(state)
    gone = store.save(0, 100)
    pages = list(gone.pages)
    del gone
    gc.collect()
    kept, wanted = store.save(1, 100), slot(state, 1, 100)
    assert kept.pages == pages
    store.load(2, kept)
    assert same(slot(state, 2, 100), wanted)


def test_what_cannot_be_sent_ends_the_engine_and_not_the_call_that_comes_next(state: SlotState) -> None:
    store = saves(state)
    kept = store.save(0, 100)

    def refuse(pages: object) -> None:
        raise RuntimeError("no such pages")

    with patch.object(store, "_send", refuse), pytest.raises(EngineError, match="no such pages") as found:
        store.send()
    assert found.value.fatal
    assert kept.pages


def marked(store: SavedStates, saved: Saved) -> list[bool]:
    """Of each page of rows, whether it still begins with the mark."""
    pages = saved.pages[store.layout.pages :]
    return [bool((next(store.pages.runs([page]))[1][:8] == 77).all()) for page in pages]


def test_a_later_save_writes_only_the_pages_that_have_new_rows(state: SlotState) -> None:
    store = saves(state)
    saved = store.save(0, 2 * SAVED_ROWS + 10)
    store.send()
    for page in saved.pages[store.layout.pages :]:
        next(store.pages.runs([page]))[1][:8] = 77
    again = store.save(0, 3 * SAVED_ROWS + 1, saved)
    assert again is saved
    assert marked(store, saved) == [True, True, False, False]


def test_a_sequence_that_grew_between_two_saves_comes_back_whole(state: SlotState) -> None:
    store = saves(state)
    saved = store.save(0, 100)
    for t in state.fixed():
        t[0] += 1
    state.tokens[0, 100:150] += 5
    wanted = slot(state, 0, 150)
    store.load(2, store.save(0, 150, saved))
    assert same(slot(state, 2, 150), wanted)


def test_a_snapshot_stays_what_it_was_when_the_sequence_goes_on_and_is_saved_itself(state: SlotState) -> None:
    store = saves(state)
    snapshot, wanted = store.save(0, 100), slot(state, 0, 100)
    for t in (*state.fixed(), *(t for t, _ in state.grown())):
        t[0] += 1
    store.save(0, 120)
    store.load(1, snapshot)
    assert same(slot(state, 1, 100), wanted)


@pytest.mark.parametrize("length", [0, 1, SAVED_ROWS - 1, SAVED_ROWS, SAVED_ROWS + 1, 500])
def test_a_saved_sequence_takes_no_more_than_a_request_reserves_for_it(state: SlotState, length: int) -> None:
    store = saves(state)
    fixed, token = store.layout.saved_bytes()
    before = store.pages.free
    saved = store.save(0, length)
    assert (before - store.pages.free) * store.layout.page == saved.nbytes <= fixed + length * token


def test_pages_of_a_sequence_that_nobody_holds_are_free_again(state: SlotState) -> None:
    store = saves(state)
    before = store.pages.free
    saved = store.save(0, 10)
    store.save(0, 200, saved)
    assert store.pages.free < before
    del saved
    gc.collect()
    assert store.pages.free == before


def test_a_later_save_takes_the_rows_that_waited_for_the_draft_head_over_the_ones_before(state: SlotState) -> None:
    store = saves(state)
    saved = store.save(0, SAVED_ROWS)
    for more in range(1, STEP_ROWS):  # the page's last row waits on, until as many wait as may
        store.save(0, SAVED_ROWS + more, saved)
    for t, per in state.grown():
        t[0, :, (SAVED_ROWS - 1) // per] = 5
    store.save(0, SAVED_ROWS + 10, saved)
    wanted = slot(state, 0, SAVED_ROWS + 10)
    store.load(1, saved)
    assert same(slot(state, 1, SAVED_ROWS + 10), wanted)
