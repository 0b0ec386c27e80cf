"""Pages of host memory for saved states, registered with the device.

A saved state is a list of pages, not a range, so as long as a page is free it can be taken: nothing fragments.
"""

import heapq
import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from torch import Tensor

from carousel_server.engine.host_memory import HostMemory
from carousel_server.engine.protocol import EngineError

log = logging.getLogger(__name__)

FURTHER = 64 * 2**20  # bytes that are registered at least when limits were raised after the start


class SavedPages:
    """Pages of `size` bytes by number. `give_back` may be called from any thread, everything else from one."""

    def __init__(self, memory: HostMemory, size: int, total: int) -> None:
        """Registers `total` bytes, in whole pages, on a thread of its own: gigabytes take a second."""
        self.size = size
        self._memory = memory
        self._areas: dict[int, Tensor] = {}  # by the number of their first page
        self._places: list[int] = []  # the address of every page
        self._free: list[int] = []  # a heap: low numbers first, so that pages taken together follow each other
        self._returned: deque[Sequence[int]] = deque()
        self._making = threading.Thread(target=self._make, args=(total // size,), name="saved states", daemon=True)
        self._making.start()

    @property
    def count(self) -> int:
        """Pages that are registered."""
        self._settle()
        return len(self._places)

    @property
    def free(self) -> int:
        """Pages that can be taken without registering more."""
        self._settle()
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` pages, ascending. Registers more when too few are free: who asks has reserved them, so the limits
        were raised after the start. EngineError, and nothing taken, when the driver refuses."""
        self._settle()
        short = count - len(self._free)
        if short > 0:
            try:
                self._add(max(short, FURTHER // self.size))
            except EngineError as error:
                raise EngineError(str(error)) from error  # only this sequence fails
        return [heapq.heappop(self._free) for _ in range(count)]

    def give_back(self, pages: Sequence[int]) -> None:
        """The pages of a state that nobody holds any more."""
        self._returned.append(pages)

    def addresses(self, pages: Sequence[int]) -> list[int]:
        """Where the pages begin; the device reads and writes them there."""
        return [self._places[page] for page in pages]

    def runs(self, pages: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """(index of its first page in `pages`, bytes) of each run of pages that follow each other in one area."""
        begin = 0
        for i in range(1, len(pages) + 1):
            if i < len(pages) and pages[i] == pages[i - 1] + 1 and pages[i] not in self._areas:
                continue
            first = max(page for page in self._areas if page <= pages[begin])
            at = (pages[begin] - first) * self.size
            yield begin, self._areas[first][at : at + (i - begin) * self.size]
            begin = i

    def _make(self, count: int) -> None:
        try:
            if count:
                self._add(count)
        except EngineError as error:
            log.error("no host memory for saved states: %s", error)  # and who takes pages asks again, and is told

    def _add(self, count: int) -> None:
        area = self._memory.area(count * self.size)
        first = len(self._places)
        self._areas[first] = area
        self._places += range(area.data_ptr(), area.data_ptr() + area.nbytes, self.size)
        self._free += range(first, first + count)  # the highest numbers: it stays a heap

    def _settle(self) -> None:
        """The first area is there, and pages that came back are free."""
        self._making.join()
        while self._returned:
            for page in self._returned.popleft():
                heapq.heappush(self._free, page)
