"""Reusable checkpoints: states after a token prefix, found by exact match. Pure: `now` is an argument, no engine call.

An entry is one snapshot with one length, so no two parts of it can disagree. It holds no sampled token, no draft and
no RNG: what follows the prefix is the new request's own business.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from carousel_server.engine.protocol import Snapshot
from carousel_server.limits import PrefixCacheLimits


@dataclass(eq=False)
class Entry:
    """A snapshot with its use. Pinned while a request adopts it."""

    snapshot: Snapshot
    bytes: int
    used: float
    pins: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prefix."""
        return self.snapshot.tokens


class PrefixCache:
    """The store. `on_drop(entry, why)` hears of every entry that goes, `why` being idle or evicted."""

    def __init__(
        self, limits: PrefixCacheLimits, on_drop: Callable[[Entry, str], None] = lambda entry, why: None
    ) -> None:
        self.limits = limits
        self._on_drop = on_drop
        self._by_tokens: dict[tuple[int, ...], Entry] = {}  # least recently used first
        self._bytes = 0
        self._reserved = 0

    def __len__(self) -> int:
        return len(self._by_tokens)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._by_tokens.values()))

    @property
    def bytes(self) -> int:
        """Bytes of all entries, with room reserved for a snapshot being taken."""
        return self._bytes + self._reserved

    @property
    def reserved(self) -> int:
        """Room kept for the snapshot being taken."""
        return self._reserved

    @property
    def pins(self) -> int:
        """Pins of all entries."""
        return sum(entry.pins for entry in self._by_tokens.values())

    def __contains__(self, tokens: tuple[int, ...]) -> bool:
        return tokens in self._by_tokens

    def find(self, tokens: Sequence[int], now: float) -> Entry | None:
        """The longest entry whose tokens are an exact prefix of these; pinned. Unpin it after use."""
        wanted, best = tuple(tokens), None
        for entry in self._by_tokens.values():
            length = len(entry.tokens)
            if length > len(wanted) or (best is not None and length <= len(best.tokens)):
                continue
            if entry.tokens == wanted[:length]:
                best = entry
        if best is not None:
            best.pins += 1
            self._touch(best, now)
        return best

    def unpin(self, entry: Entry) -> None:
        """The request has its copy."""
        entry.pins -= 1
        self.enforce()

    def reserve(self, tokens: tuple[int, ...], size: int, now: float) -> bool:
        """Make room for a snapshot of about `size` bytes; False if it is there already or can have no room."""
        if self.limits.count == 0 or size > self._most:
            return False
        known = self._by_tokens.get(tokens)
        if known is not None:
            self._touch(known, now)
            return False
        if not self._make_room(self.limits.count - 1, self._most - size):
            return False
        self._reserved = size
        return True

    def insert(self, snapshot: Snapshot | None, now: float) -> None:
        """End a reservation with its snapshot, or with None when the engine could not take one."""
        self._reserved = 0
        if snapshot is None:
            return
        entry = Entry(snapshot, snapshot.nbytes, now)
        if entry.bytes > self._most or not self._make_room(self.limits.count - 1, self._most - entry.bytes):
            return
        self._by_tokens[snapshot.tokens] = entry
        self._bytes += entry.bytes

    def sweep(self, now: float) -> None:
        """Drop what was idle for too long."""
        for entry in self:
            if not entry.pins and now - entry.used >= self.limits.idle:
                self._drop(entry, "idle")

    def enforce(self) -> None:
        """Evict until the limits hold, as far as pins allow."""
        self._make_room(self.limits.count, self._most)

    def clear(self) -> None:
        """Drop every entry that is not pinned."""
        self._make_room(0, 0)

    @property
    def _most(self) -> int:
        return self.limits.bytes or 0

    def _make_room(self, count: int, size: int) -> bool:
        for entry in self:
            if len(self._by_tokens) <= count and self.bytes <= size:
                break
            if not entry.pins:
                self._drop(entry, "evicted")
        return len(self._by_tokens) <= count and self.bytes <= size

    def _drop(self, entry: Entry, why: str) -> None:
        del self._by_tokens[entry.tokens]
        self._bytes -= entry.bytes
        self._on_drop(entry, why)

    def _touch(self, entry: Entry, now: float) -> None:
        entry.used = now
        self._by_tokens[entry.tokens] = self._by_tokens.pop(entry.tokens)
