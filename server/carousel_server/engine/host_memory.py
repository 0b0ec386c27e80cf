"""Host memory that the GPU reads where it lies: mapped files, registered with the driver, and copies of what cannot be.

A tensor may begin anywhere in a file, and a file system or driver may refuse registration. Such tensors are copied
once into an arena of aligned host memory.
"""

import logging
import mmap
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from carousel_server.engine.protocol import EngineError
from carousel_server.units import human_bytes

log = logging.getLogger(__name__)

PAGE = 4096
MAPPED, READ_ONLY = 2, 8  # cudaHostRegister flags

Range = tuple[int, int]  # addresses: begin, and the first one behind it


class Driver(Protocol):
    """The two calls of the CUDA runtime that are needed; 0 is success."""

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> Any: ...

    def cudaHostUnregister(self, pointer: int) -> Any: ...


class HostMemory:
    """What it made visible stays so as long as this object lives: its addresses may be another map's later."""

    def __init__(self, driver: Driver | None) -> None:
        """`driver` None: the device is a CPU, and reads host memory anyway."""
        self._driver = driver
        self._ranges: list[Range] = []
        self._arenas: list[Tensor] = []
        if driver is not None:
            weakref.finalize(self, _unregister, driver, self._ranges).atexit = False

    def visible(self, tensors: Sequence[Tensor], *, align: int = 1) -> list[Tensor]:
        """The same values where the device can read them, each at a multiple of `align` bytes.

        Contiguous tensors in mapped files are registered and returned as they are; those that are not aligned, and all
        of them where registration is refused, are copied. EngineError when not even the copies can be registered.
        """
        crooked = [i for i, t in enumerate(tensors) if t.data_ptr() % align]
        cause = f"do not begin at a multiple of {align} bytes in their file"
        straight = [t for t in tensors if t.data_ptr() % align == 0]
        error = self._register(without(pages(straight), self._ranges), MAPPED | READ_ONLY)
        if error:
            crooked = list(range(len(tensors)))
            cause = f"lie in pages that the driver does not register (error {error})"
        if not crooked:
            return list(tensors)
        copies = self._copy([tensors[i] for i in crooked], align)
        size = human_bytes(sum(t.nbytes for t in copies))
        log.warning("%d of %d tensors %s: copied once, %s of host memory", len(crooked), len(tensors), cause, size)
        found = list(tensors)
        for i, copy in zip(crooked, copies, strict=True):
            found[i] = copy
        return found

    def area(self, nbytes: int) -> Tensor:
        """Zeros that the device reads and writes where they lie. EngineError when the system or the driver refuses."""
        try:
            whole = _anonymous(nbytes)
        except OSError as error:
            raise EngineError(f"{human_bytes(nbytes)} of host memory cannot be had: {error}") from error
        if self._driver is not None:
            whole.zero_()  # by all threads; registering brings the pages one by one
        self._keep(whole)
        return whole

    def give_back(self, area: Tensor) -> None:
        """Forget an area that nothing uses any more."""
        begin, end = pages([area])[0]
        if self._driver is not None:
            self._driver.cudaHostUnregister(begin)
            self._ranges.remove((begin, end))
        self._arenas = [one for one in self._arenas if one is not area]

    def _copy(self, tensors: Sequence[Tensor], align: int) -> list[Tensor]:
        places, size = arena([t.nbytes for t in tensors], align)
        whole = _anonymous(size)
        copies = []
        for tensor, at in zip(tensors, places, strict=True):
            part = whole[at : at + tensor.nbytes]
            part.copy_(tensor.reshape(-1).view(torch.uint8))
            copies.append(part.view(tensor.dtype).view(tensor.shape))
        self._keep(whole)
        return copies

    def _keep(self, whole: Tensor) -> None:
        error = self._register(pages([whole]), MAPPED)
        if error:
            raise EngineError(
                f"CUDA error {error}: {human_bytes(whole.nbytes)} of host memory cannot be registered; is there a "
                "limit on locked memory?",
                fatal=True,
            )
        self._arenas.append(whole)

    def _register(self, ranges: Iterable[Range], flags: int) -> int:
        """All of the ranges, or none and the error of the one that was refused."""
        if self._driver is None:
            return 0
        done: list[Range] = []
        for begin, end in ranges:
            error = int(self._driver.cudaHostRegister(begin, end - begin, flags))
            if error:
                _unregister(self._driver, done)
                _forget_refusal()
                return error
            done.append((begin, end))
        self._ranges[:] = sorted([*self._ranges, *done])
        return 0


def _unregister(driver: Driver, ranges: Iterable[Range]) -> None:
    for begin, _ in ranges:
        driver.cudaHostUnregister(begin)


def cuda_memory() -> HostMemory:
    """For the current CUDA device."""
    return HostMemory(torch.cuda.cudart())  # type: ignore[no-untyped-call]


def _anonymous(nbytes: int) -> Tensor:
    """New memory, on huge pages where the kernel gives them."""
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a platform or a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def memory_for(device: torch.device) -> HostMemory:
    """For a CUDA device, or for a CPU in its place."""
    return cuda_memory() if device.type == "cuda" else HostMemory(None)


def pages(tensors: Iterable[Tensor]) -> list[Range]:
    """The pages of the tensors, neighbours as one range, ascending."""
    found: list[Range] = []
    for t in sorted(tensors, key=lambda t: t.data_ptr()):
        begin, end = t.data_ptr() // PAGE * PAGE, -(-(t.data_ptr() + t.nbytes) // PAGE) * PAGE
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def without(ranges: Iterable[Range], held: Iterable[Range]) -> list[Range]:
    """What of `ranges` is in none of `held`: the driver refuses to register a page twice."""
    left = list(ranges)
    for begin, end in held:
        left = [
            part
            for first, last in left
            for part in ((first, min(last, begin)), (max(first, end), last))
            if part[0] < part[1]
        ]
    return left


def arena(sizes: Sequence[int], align: int) -> tuple[list[int], int]:
    """Where tensors of these byte sizes begin behind each other at multiples of `align`, and the bytes of all."""
    places, at = [], 0
    for size in sizes:
        places.append(at)
        at += -(-size // align) * align
    return places, at


def _forget_refusal() -> None:
    """The runtime keeps a refusal as its last error, and the next launch would report it as its own."""
    if torch.cuda.is_available():
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError:
            log.debug("the refusal was reported, and is forgotten")
