"""Pages of host memory for saved states: who has which, and what follows what. No device."""

import random

import pytest
from carousel_server.engine.host_memory import HostMemory
from carousel_server.engine.protocol import EngineError
from carousel_server.engine.saved_pages import FURTHER, SavedPages

from tests.unit.test_host_memory import Driver

SIZE = 8192


def test_the_area_is_whole_pages_within_the_bytes_that_were_planned() -> None:
    driver = Driver()
    pages = SavedPages(HostMemory(driver), SIZE, 10 * SIZE + SIZE - 1)
    assert (pages.count, pages.free) == (10, 10)
    assert sum(end - begin for begin, end in driver.held.items()) == 10 * SIZE


def test_as_long_as_a_page_is_free_it_can_be_taken_in_whatever_order_they_came_back() -> None:
    pages, draw = SavedPages(HostMemory(None), SIZE, 200 * SIZE), random.Random(4)
    held: list[list[int]] = []
    for _ in range(2000):
        if held and draw.random() < 0.5:
            pages.give_back(held.pop(draw.randrange(len(held))))
        elif pages.free:
            held.append(pages.take(draw.randint(1, pages.free)))
        taken = [page for one in held for page in one]
        assert len(taken) == len(set(taken))
        assert len(taken) + pages.free == pages.count == 200


def test_pages_taken_together_are_copied_together() -> None:
    pages = SavedPages(HostMemory(None), SIZE, 8 * SIZE)
    first, second, third = pages.take(3), pages.take(2), pages.take(3)
    assert [(at, run.nbytes) for at, run in pages.runs(second)] == [(0, 2 * SIZE)]
    pages.give_back(third)
    pages.give_back(first)
    found = pages.take(6)
    assert [(at, run.nbytes) for at, run in pages.runs(found)] == [(0, 3 * SIZE), (3, 3 * SIZE)]
    places = [run.data_ptr() + i * SIZE for _, run in pages.runs(found) for i in range(run.nbytes // SIZE)]
    assert places == pages.addresses(found)


def test_limits_that_were_raised_later_get_their_memory_and_its_pages_are_no_neighbours_of_the_first() -> None:
    driver = Driver()
    pages = SavedPages(HostMemory(driver), SIZE, 2 * SIZE)
    found = pages.take(5)
    assert pages.count == 2 + FURTHER // SIZE
    assert [at for at, _ in pages.runs(found)] == [0, 2]
    assert all(driver.reads(run) for _, run in pages.runs(found))


def test_memory_that_the_driver_refuses_fails_the_sequence_that_asks_and_nothing_is_taken() -> None:
    pages = SavedPages(HostMemory(Driver(most=4 * SIZE)), SIZE, 4 * SIZE)
    with pytest.raises(EngineError, match="cannot be registered") as caught:
        pages.take(5)
    assert not caught.value.fatal
    assert pages.free == 4
    assert pages.take(4) == [0, 1, 2, 3]
