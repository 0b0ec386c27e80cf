"""Host memory for the GPU: which pages are registered, and what is copied because it cannot be."""

import gc
import logging
import mmap

import pytest
import torch
from carousel_server.engine.host_memory import PAGE, READ_ONLY, HostMemory, arena, pages, without
from carousel_server.engine.protocol import EngineError


class Driver:
    """Registers like the CUDA runtime: no page twice, and read-only pages perhaps not at all (801)."""

    def __init__(self, *, read_only: bool = True, most: int = 2**40) -> None:
        self.read_only, self.most = read_only, most
        self.held: dict[int, int] = {}

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        assert pointer % PAGE == size % PAGE == 0
        if flags & READ_ONLY and not self.read_only:
            return 801
        if size > self.most:
            return 2
        if any(pointer < end and begin < pointer + size for begin, end in self.held.items()):
            return 712
        self.held[pointer] = pointer + size
        return 0

    def cudaHostUnregister(self, pointer: int) -> int:
        del self.held[pointer]
        return 0

    def reads(self, tensor: torch.Tensor) -> bool:
        """Whether the device could read all of it: its pages are registered, in one range or in several."""
        return not without(pages([tensor]), self.held.items())


def file_like(*sizes: int, first: int = 0) -> list[torch.Tensor]:
    """Byte tensors behind each other in one map, beginning `first` bytes after a page's start."""
    area = mmap.mmap(-1, first + sum(sizes))
    whole = torch.frombuffer(area, dtype=torch.uint8)
    whole.copy_(torch.arange(whole.numel()) % 251)
    starts = [first + sum(sizes[:i]) for i in range(len(sizes))]
    return [whole[at : at + size] for at, size in zip(starts, sizes, strict=True)]


def test_tensors_that_can_be_read_where_they_lie_are_not_copied():
    driver, found = Driver(), file_like(5000, 3000, 20_000)
    memory = HostMemory(driver)
    seen = memory.visible(found)
    assert [t.data_ptr() for t in seen] == [t.data_ptr() for t in found]
    assert len(driver.held) == 1
    assert all(driver.reads(t) for t in seen)


def test_a_page_that_two_calls_share_is_registered_once():
    driver, found = Driver(), file_like(5000, 5000, 50_000, 100)
    memory = HostMemory(driver)
    for part in ([found[1]], [found[0], found[2]], [found[3]]):
        memory.visible(part)
    assert all(driver.reads(t) for t in found)


def test_tensors_that_begin_elsewhere_are_copied_to_an_aligned_place_and_said_once(caplog):
    driver, found = Driver(), file_like(4096, 4100, 4096, 96, first=64)
    with caplog.at_level(logging.WARNING):
        memory = HostMemory(driver)
        seen = memory.visible(found, align=16)
    moved = [a.data_ptr() != b.data_ptr() for a, b in zip(found, seen, strict=True)]
    assert moved == [False, False, True, True]
    assert all(t.data_ptr() % 16 == 0 for t in seen)
    assert all(torch.equal(a, b) for a, b in zip(found, seen, strict=True))
    assert all(driver.reads(t) for t in seen)
    assert len(caplog.records) == 1
    assert "2 of 4 tensors do not begin at a multiple of 16 bytes" in caplog.records[0].getMessage()


def test_pages_that_the_driver_refuses_are_copied_and_what_was_registered_of_them_is_given_back(caplog):
    driver, found = Driver(read_only=False), [*file_like(5000, 7000), *file_like(300)]
    with caplog.at_level(logging.WARNING):
        memory = HostMemory(driver)
        seen = memory.visible(found, align=16)
    assert all(torch.equal(a, b) for a, b in zip(found, seen, strict=True))
    assert all(driver.reads(t) for t in seen)
    assert len(driver.held) == 1, "only the arena"
    assert "error 801" in caplog.text


def test_new_memory_is_zeros_that_the_device_reads_until_it_is_given_back():
    driver = Driver()
    memory = HostMemory(driver)
    kept, passing = memory.area(3 * PAGE), memory.area(PAGE + 1)
    assert driver.reads(kept)
    assert driver.reads(passing)
    assert not kept.any()
    memory.give_back(passing)
    assert not driver.reads(passing)
    assert driver.reads(kept)
    again = memory.area(5)
    assert driver.reads(again)


def test_nothing_stays_registered_of_memory_that_nobody_holds():
    driver, found = Driver(), file_like(5000, 3000)
    memory = HostMemory(driver)
    memory.visible(found)
    memory.area(PAGE)
    assert len(driver.held) == 2
    del memory
    gc.collect()
    assert not driver.held


def test_memory_that_cannot_be_registered_at_all_is_an_error_of_the_device():
    with pytest.raises(EngineError, match=r"CUDA error 2: .* cannot be registered") as caught:
        HostMemory(Driver(most=PAGE)).visible(file_like(50_000))
    assert caught.value.fatal


def test_types_and_shapes_survive_a_copy():
    values = torch.randn(6, 10).to(torch.float8_e4m3fn)
    shifted = torch.frombuffer(mmap.mmap(-1, 128), dtype=torch.uint8)[5:65]
    shifted.copy_(values.view(torch.uint8).flatten())
    seen = HostMemory(None).visible([shifted.view(torch.float8_e4m3fn).view(6, 10)], align=16)[0]
    assert (seen.dtype, seen.shape, seen.data_ptr() % 16) == (torch.float8_e4m3fn, (6, 10), 0)
    assert torch.equal(seen.float(), values.float())


@pytest.mark.parametrize(
    ("sizes", "align", "places", "total"),
    [([], 16, [], 0), ([16, 16], 16, [0, 16], 32), ([1, 17, 0, 5], 16, [0, 16, 48, 48], 64), ([3, 3], 1, [0, 3], 6)],
)
def test_an_arena_places_each_tensor_at_the_next_multiple(sizes, align, places, total):
    assert arena(sizes, align) == (places, total)


def test_what_is_held_is_cut_out_of_what_is_wanted():
    assert without([(0, 10), (20, 30)], []) == [(0, 10), (20, 30)]
    assert without([(0, 10), (20, 30)], [(5, 25)]) == [(0, 5), (25, 30)]
    assert without([(0, 30)], [(0, 5), (10, 12), (29, 40)]) == [(5, 10), (12, 29)]
    assert without([(3, 4)], [(0, 10)]) == []


def test_an_area_that_the_system_does_not_have_is_an_engine_error():
    with pytest.raises(EngineError, match="of host memory cannot be had"):
        HostMemory(None).area(2**60)
