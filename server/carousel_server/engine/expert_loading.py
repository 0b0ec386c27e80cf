"""Brings the experts of a pool that holds all of them to the GPU, while the server answers already.

Layer by layer, in the order in which a prompt reads them: a prompt waits for the layer that it has come to, a step for
all. Threads copy experts out of the mapped files into buffers of registered memory, the copy engine takes them from
there. So it does not matter where an expert begins in its file, nor whether the driver registers the file's pages, and
no page of the files stays pinned.
"""

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from carousel_server.allocations import LOADING_BUFFERS, loading_batch
from carousel_server.engine.call import first_line
from carousel_server.engine.host_memory import memory_for
from carousel_server.engine.pool import ExpertPool, HostExperts
from carousel_server.engine.protocol import EngineError, StepStats

log = logging.getLogger(__name__)

THREADS = 8  # one copies about 8 GB/s
SERVING = 0.3  # share of a start when requests are answered and experts begin to come


class ExpertLoading:
    """One thread from `start` to the last expert. `wait` may be called from another one."""

    def __init__(self, pool: ExpertPool, experts: Callable[[int], HostExperts], stats: StepStats) -> None:
        """experts(layer): where they lie. `stats` says how far it is."""
        self.pool, self._experts, self._stats = pool, experts, stats
        cuda = pool.device.type == "cuda"
        self._stream = torch.cuda.Stream(pool.device) if cuda else None  # type: ignore[no-untyped-call]
        self._sent = [threading.Event() for _ in range(pool.layers)]
        self._arrived: list[torch.cuda.Event | None] = [None] * pool.layers
        self._error: Exception | None = None

    def start(self) -> None:
        """Load on a thread of its own."""
        self._tell(0)
        threading.Thread(target=self._run, name="experts", daemon=True).start()

    def wait(self, layer: int) -> None:
        """What is started from now on finds the layer's experts. EngineError as by `check`."""
        self._sent[layer].wait()
        self.check()
        event = self._arrived[layer]
        if event is not None:
            torch.cuda.current_stream().wait_event(event)

    def check(self) -> None:
        """EngineError, fatal, when the experts cannot be loaded."""
        if self._error is not None:
            why = first_line(self._error)
            raise EngineError(f"the experts cannot be loaded: {why}", fatal=True) from self._error

    def _run(self) -> None:
        try:
            self._load()
        except Exception as error:
            if threading.main_thread().is_alive():  # else the process ends, and nobody waits
                log.exception("the experts cannot be loaded")
            self._error = error
            for sent in self._sent:
                sent.set()

    def _load(self) -> None:
        pool, memory = self.pool, memory_for(self.pool.device)
        each = loading_batch(pool.slots, pool.expert_bytes) * pool.expert_bytes
        whole = memory.area(LOADING_BUFFERS * each)
        buffers = _Buffers(list(whole.chunk(LOADING_BUFFERS)))
        with torch.inference_mode(), ThreadPoolExecutor(min(THREADS, len(os.sched_getaffinity(0)))) as crew:
            coming = crew.submit(self._experts, 0)
            for layer in range(pool.layers):
                if layer:
                    self._tell(layer)
                experts = coming.result()
                if layer + 1 < pool.layers:
                    coming = crew.submit(self._experts, layer + 1)
                self._send(layer, experts, buffers, crew)
                if layer + 1 == pool.layers and self._stream is not None:
                    self._stream.synchronize()  # who waits for the last layer knows that nothing failed on the way
                self._sent[layer].set()
        memory.give_back(whole)
        self._stats.loaded, self._stats.loading = 1.0, ""
        log.info("every expert is on the GPU")

    def _tell(self, layer: int) -> None:
        what = f"experts of layer {layer + 1} of {self.pool.layers}"
        self._stats.loaded = SERVING + (1 - SERVING) * layer / self.pool.layers
        self._stats.loading = f"loading onto the GPU: {what}"
        log.info("loading %.0f%%: %s", self._stats.loaded * 100, what)

    def _send(self, layer: int, experts: HostExperts, buffers: "_Buffers", crew: ThreadPoolExecutor) -> None:
        pool = self.pool
        slots = pool.slabs[layer].slots.view(torch.uint8)
        batch = buffers.size // pool.expert_bytes
        for first in range(0, pool.slots, batch):
            chosen = experts.parts[first : first + batch]
            buffer = buffers.next()
            places = [buffer.data_ptr() + i * pool.expert_bytes for i in range(len(chosen))]
            list(crew.map(_copy, places, chosen))
            with torch.cuda.stream(self._stream):
                target = slots[first : first + len(chosen)]
                target.copy_(buffer[: target.numel()].view(target.shape), non_blocking=True)
                buffers.busy(None if self._stream is None else self._stream.record_event())
        with torch.cuda.stream(self._stream):
            if pool.scales is not None and experts.scales is not None:
                pool.scales[layer].copy_(experts.scales)
            self._arrived[layer] = None if self._stream is None else self._stream.record_event()


class _Buffers:
    """Taken in turn; one that the copy engine still reads is waited for."""

    def __init__(self, memory: list[Tensor]) -> None:
        self.size = memory[0].nbytes
        self._memory, self._turn = memory, 0
        self._read: list[torch.cuda.Event | None] = [None] * len(memory)

    def next(self) -> Tensor:
        event = self._read[self._turn]
        if event is not None:
            event.synchronize()
        return self._memory[self._turn]

    def busy(self, event: torch.cuda.Event | None) -> None:
        """The buffer that was taken last is read until `event`."""
        self._read[self._turn] = event
        self._turn = (self._turn + 1) % len(self._memory)


def _copy(place: int, parts: tuple[Tensor, Tensor, Tensor]) -> None:
    for part in parts:
        ctypes.memmove(place, part.data_ptr(), part.nbytes)  # lets other threads run
        place += part.nbytes
