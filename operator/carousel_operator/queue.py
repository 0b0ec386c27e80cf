"""Which key is reconciled when: one reconcile per key at a time, back-off per key, delays. Pure; `now` is an argument.

A key that is added while it is being reconciled runs once more afterwards, however often it was added.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

FIRST_BACKOFF, LAST_BACKOFF = 1.0, 300.0


@dataclass
class Queue(Generic[Key]):
    """Times are seconds of any monotonic clock."""

    _due: dict[Key, float] = field(default_factory=dict)
    _running: set[Key] = field(default_factory=set)
    _failures: dict[Key, int] = field(default_factory=dict)
    _not_before: dict[Key, float] = field(default_factory=dict)

    def add(self, key: Key, at: float, *, fresh: bool = False) -> None:
        """Run `key` at `at` or earlier, but not before its back-off ends.

        An event does not shorten a back-off: a broken object must not be tried at the rate of its events.
        `fresh` (the user changed the spec) ends it.
        """
        if fresh:
            self._not_before.pop(key, None)
            self._failures.pop(key, None)
        at = max(at, self._not_before.get(key, at))
        self._due[key] = min(at, self._due.get(key, at))

    def take(self, now: float) -> Key | None:
        """The key that has waited longest past its time; the caller must call `done` for it."""
        ready = [(at, index, key) for index, (key, at) in enumerate(self._due.items()) if at <= now]
        ready = [entry for entry in ready if entry[2] not in self._running]
        if not ready:
            return None
        key = min(ready, key=lambda entry: entry[:2])[2]
        del self._due[key]
        self._running.add(key)
        return key

    def done(self, key: Key) -> None:
        """The reconcile of `key` succeeded."""
        self._running.discard(key)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def failed(self, key: Key, now: float, at_least: float = 0.0) -> float:
        """The reconcile of `key` failed: it runs again after its back-off. Returns the delay in seconds."""
        self._running.discard(key)
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = max(at_least, min(LAST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(count, 16)))
        self._due[key] = self._not_before[key] = now + delay
        return delay

    def forget(self, key: Key) -> None:
        """The object is gone."""
        self._due.pop(key, None)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def next_at(self) -> float | None:
        """When the next key that is not running is due; None when nothing waits."""
        return min((at for key, at in self._due.items() if key not in self._running), default=None)

    @property
    def depth(self) -> int:
        """Keys that wait."""
        return len(self._due)

    @property
    def running(self) -> int:
        """Keys that are being reconciled."""
        return len(self._running)
