"""Sequences in host memory, and the copies between them and a slot.

A saved sequence is pages: first those of what is saved whole, then one for every SAVED_ROWS tokens, so that a later
save adds rows where they belong. Out: a kernel gathers pages into a staging area on the device, the copy engine sends
them on; the slot is free once they are gathered. In: a kernel reads the pages where they lie. Both directions have a
stream of their own.

What a save leaves in staging is sent by `send`, which a load calls behind itself: so the two do not share the bus
while a request waits for its state, and the bytes leave beside the steps that follow.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from carousel_kernels.paging import triton as paging
from torch import Tensor

from carousel_server.allocations import SAVED_PIECE, SAVED_ROWS, STEP_ROWS
from carousel_server.engine.call import first_line
from carousel_server.engine.gpu_state import SlotState
from carousel_server.engine.host_memory import HostMemory
from carousel_server.engine.protocol import EngineError
from carousel_server.engine.saved_pages import SavedPages


@dataclass(eq=False)
class Saved:
    """A sequence in host memory. Its bytes are complete after `ready`, which only a device waits for; None: they are,
    or they are in staging.

    Its pages go back when nobody holds it any more.
    """

    length: int = 0
    pages: list[int] = field(default_factory=list)
    addresses: Tensor | None = None  # of the pages, on the device
    ready: torch.cuda.Event | None = None
    nbytes: int = 0  # host bytes: whole pages


class Layout:
    """Where each tensor of a slot lies in the pages. Pieces are rows of `carousel_kernels.paging`."""

    def __init__(self, state: SlotState) -> None:
        device, fixed, grown = state.tokens.device, state.fixed(), state.grown()
        assert SAVED_ROWS % state.ratio == 0
        token = sum(t[0, :, 0].nbytes * (state.ratio // per) for t, per in grown)
        self.token = -(-token // state.ratio)  # bytes, rounded up
        self.page = SAVED_ROWS * self.token
        whole = sum(t[0].nbytes for t in fixed)
        self.pages = -(-whole // self.page)  # of what is saved whole
        rows = _fixed_pieces(fixed, self.page)
        most = len(fixed) + self.pages + -(-whole // SAVED_PIECE)
        rows += [[0] * paging.COLUMNS] * (most - len(rows))
        self.fixed = torch.tensor(rows, dtype=torch.int64, device=device)
        self.grown = torch.tensor(_grown_pieces(grown), dtype=torch.int64, device=device)

    def saved_bytes(self) -> tuple[int, int]:
        """At most: host bytes of a saved sequence of 0 tokens, and of each token."""
        return self.pages * self.page + (SAVED_ROWS - 1) * self.token, self.token

    def groups(self, length: int) -> int:
        """Pages of the rows of `length` tokens."""
        return -(-length // SAVED_ROWS)


class SavedStates:
    """See the module. Called from one thread."""

    def __init__(self, state: SlotState, memory: HostMemory, total: int) -> None:
        """total: bytes of host memory to make ready; see SavedPages."""
        self.layout = layout = Layout(state)
        self.device = device = state.tokens.device
        self.pages = SavedPages(memory, layout.page, total)
        # zeros: what rounds a page up is sent too
        self.staging = torch.zeros(layout.pages + 1, layout.page, dtype=torch.uint8, device=device)
        self.staged = self.staging.data_ptr() + layout.page * torch.arange(len(self.staging), device=device)
        cuda = device.type == "cuda"
        self._out = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._slots: dict[int, torch.cuda.Event] = {}  # after which a slot is as its last save or load leaves it
        self._loaded: torch.cuda.Event | None = None  # after which no load reads pages any more
        self._staged: tuple[weakref.ref[Saved], list[int]] | None = None  # whose staged pages are still to be sent
        if cuda:  # compile the kernel before the first request needs it; a slot's bytes go to staging and back
            for out in (True, False):
                paging.copy(layout.fixed, self.staged, 0, out=out)

    def join(self, slot: int) -> None:
        """What is started from now on finds the slot's last save or load done."""
        event = self._slots.pop(slot, None)
        if event is not None:
            torch.cuda.current_stream().wait_event(event)

    def send(self) -> None:
        """Send what the last save left in staging, unless nobody holds that any more. EngineError, always fatal: it is
        another sequence's than the caller's."""
        if self._staged is None:
            return
        (whose, pages), self._staged = self._staged, None
        saved = whose()
        if saved is None:
            return
        try:
            self._let_loads_read()
            with torch.cuda.stream(self._out):
                self._send(pages)
            saved.ready = None if self._out is None else self._out.record_event()
        except RuntimeError as error:
            raise EngineError(f"a saved state cannot be sent: {first_line(error)}", fatal=True) from error

    def save(self, slot: int, length: int, saved: Saved | None = None) -> Saved:
        """Copy a sequence of `length` tokens out, of its rows only those of pages that `saved` lacks or has in part.

        `join` before the slot is used again. EngineError when there is no host memory: nothing has changed then.
        """
        layout = self.layout
        self.send()
        wanted = layout.pages + layout.groups(length)
        found = Saved() if saved is None else saved
        more = self.pages.take(max(0, wanted - len(found.pages)))
        found.pages += more
        if more:
            found.addresses = None
        if saved is None:
            weakref.finalize(found, self.pages.give_back, found.pages).atexit = False
        found.nbytes = len(found.pages) * layout.page
        # a save is ahead of the draft head by the rows that wait for it, STEP_ROWS at most; their keys come later, also
        # where the same rows wait over several saves
        group, last = max(0, found.length - STEP_ROWS) // SAVED_ROWS, layout.groups(length)
        self._wait(self._out, slot)
        self._let_loads_read()
        with torch.cuda.stream(self._out):
            while last - group > 1:
                count = min(last - group - 1, len(self.staging))
                self._grown(slot, self.staged, group, count, 0, out=True)
                self._send(found.pages[layout.pages + group : layout.pages + group + count])
                group += count
            paging.copy(layout.fixed, self.staged, slot, out=True)
            self._grown(slot, self.staged, group, last - group, layout.pages, out=True)
            self._done(self._out, slot)
        behind = found.pages[layout.pages + group : layout.pages + last]
        self._staged = weakref.ref(found), found.pages[: layout.pages] + behind
        found.length = length
        return found

    def load(self, slot: int, saved: Saved) -> None:
        """Copy a saved sequence in. `join` before the slot is used."""
        layout = self.layout
        if self._staged is not None and self._staged[0]() is saved:
            self.send()
        with torch.cuda.stream(self._in):
            if saved.addresses is None:
                saved.addresses = torch.tensor(self.pages.addresses(saved.pages)).to(self.device, non_blocking=True)
            addresses = saved.addresses
        self._wait(self._in, slot)
        if self._in is not None and saved.ready is not None:
            self._in.wait_event(saved.ready)
        with torch.cuda.stream(self._in):
            paging.copy(layout.fixed, addresses, slot, out=False)
            self._grown(slot, addresses, 0, layout.groups(saved.length), layout.pages, out=False)
            self._loaded = self._done(self._in, slot)
        self.send()

    def _wait(self, stream: torch.cuda.Stream | None, slot: int) -> None:
        """Nothing on `stream` begins before what was started so far is done, and the slot's last copy."""
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())
            event = self._slots.get(slot)
            if event is not None:
                stream.wait_event(event)

    def _let_loads_read(self) -> None:
        """Nothing is sent to pages that a load which was started so far still reads."""
        if self._out is not None and self._loaded is not None:
            self._out.wait_event(self._loaded)

    def _done(self, stream: torch.cuda.Stream | None, slot: int) -> torch.cuda.Event | None:
        if stream is None:
            return None
        event: torch.cuda.Event = stream.record_event()
        self._slots[slot] = event
        return event

    def _grown(self, slot: int, addresses: Tensor, first: int, groups: int, at: int, *, out: bool) -> None:
        if groups:
            paging.copy(self.layout.grown, addresses, slot, first=first, groups=groups, at=at, out=out)

    def _send(self, pages: Sequence[int]) -> None:
        """The first pages of staging to these, in one copy where they follow each other."""
        for begin, memory in self.pages.runs(pages):
            source = self.staging.view(-1)[begin * self.layout.page :]
            memory.copy_(source[: memory.nbytes], non_blocking=True)


def _fixed_pieces(tensors: Sequence[Tensor], page: int) -> list[list[int]]:
    """Behind each other, cut where a page ends."""
    rows, at = [], 0
    for t in tensors:
        begin, size = 0, t[0].nbytes
        while begin < size:
            length = min(SAVED_PIECE, size - begin, page - at % page)
            place = [t.data_ptr() + begin, t.stride(0) * t.element_size(), 0, at // page, at % page, length, length]
            rows.append([*place, _unit(place)])
            begin, at = begin + length, at + length
    return rows


def _grown_pieces(tensors: Sequence[tuple[Tensor, int]]) -> list[list[int]]:
    """SAVED_ROWS tokens of every head behind each other in one page."""
    rows, at = [], 0
    for t, per in tensors:
        slot, head, row = (t.stride(d) * t.element_size() for d in range(3))
        group = SAVED_ROWS // per * row
        for h in range(t.shape[1]):
            for begin in range(0, group, SAVED_PIECE):
                length = min(SAVED_PIECE, group - begin)
                first = t.data_ptr() + h * head + begin
                place = [first, slot, group, 0, at, length, t.shape[2] * row - begin]
                rows.append([*place, _unit(place)])
                at += length
    return rows


def _unit(place: Sequence[int]) -> int:
    """Bytes of a load and store; the page's number, the fourth, does not count."""
    return 4 if any(value % 16 for value in (*place[:3], *place[4:])) else 16
