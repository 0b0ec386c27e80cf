"""Ids that say where they were made, and what became of those that are not here. Pure.

An id is `<ordinal>.<boot id>.<random and MAC>`: 128 random bits, then 64 bits of HMAC-SHA256 over everything before
them under a key that lives as long as the process. No list of dropped ids is needed: a valid MAC proves that this boot
made the id.
"""

import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from carousel_server.admin_state import LossCause, LostBoot, Peer
from carousel_server.failure import Failure

_SHAPE = re.compile(r"(0|[1-9][0-9]{0,8})\.([0-9a-f]{16})\.([0-9a-f]{32})([0-9a-f]{16})")

Noun = Literal["session", "request"]


@dataclass(frozen=True)
class Elsewhere:
    """An id of another pod's boot: ask this address."""

    peer: Peer


@dataclass(frozen=True)
class Lost:
    """An id of a boot that is known to have ended."""

    ordinal: int
    boot_id: str
    cause: LossCause
    at: str | None

    def failure(self, noun: Noun) -> Failure:
        """410 with the cause and, where known, the time."""
        when = f" at {self.at}" if self.at else ""
        return Failure(
            "session_lost",
            f"the {noun} was on pod {self.ordinal}, boot {self.boot_id}, which ended{when} ({self.cause}): "
            "sessions live in memory and are gone; create a new one and send the history again",
            details={"cause": self.cause, "at": self.at},
        )


@dataclass(frozen=True)
class Unreachable:
    """An id of another pod's boot that no table knows."""

    ordinal: int
    boot_id: str


Verdict = Literal["made_here", "unknown"] | Elsewhere | Lost | Unreachable


class Identity:
    """Makes ids and judges them. `entropy(n)` gives n random bytes."""

    def __init__(self, ordinal: int, entropy: Callable[[int], bytes]) -> None:
        self.ordinal = ordinal
        self.boot_id = entropy(8).hex()
        self._key = entropy(32)
        self._entropy = entropy

    def new_id(self) -> str:
        """A fresh id of this boot."""
        body = f"{self.ordinal}.{self.boot_id}.{self._entropy(16).hex()}"
        return body + self._mac(body)

    def judge(self, identifier: str, peers: Sequence[Peer] = (), lost: Sequence[LostBoot] = ()) -> Verdict:
        """Where an id belongs. `made_here` is proven by the MAC, `unknown` means that nobody made it."""
        found = _SHAPE.fullmatch(identifier)
        if found is None:
            return "unknown"
        ordinal, boot_id, _, mac = int(found[1]), found[2], found[3], found[4]
        if ordinal == self.ordinal and boot_id == self.boot_id:
            return "made_here" if hmac.compare_digest(mac, self._mac(identifier[:-16])) else "unknown"
        for boot in lost:
            if boot.ordinal == ordinal and boot.boot_id == boot_id:
                return Lost(ordinal, boot_id, boot.cause, boot.at)
        if ordinal == self.ordinal:
            # This pod is the owner, and it runs another boot: that is the evidence.
            return Lost(ordinal, boot_id, "unknown", None)
        for peer in peers:
            if peer.ordinal == ordinal:
                return Elsewhere(peer)
        return Unreachable(ordinal, boot_id)

    def missing(
        self, identifier: str, noun: Noun, peers: Sequence[Peer] = (), lost: Sequence[LostBoot] = ()
    ) -> Failure:
        """The answer for an id that is not in this pod's tables."""
        verdict = self.judge(identifier, peers, lost)
        if isinstance(verdict, Lost) and noun == "session":
            return verdict.failure(noun)
        if isinstance(verdict, Elsewhere | Unreachable) and noun == "session":
            ordinal = verdict.peer.ordinal if isinstance(verdict, Elsewhere) else verdict.ordinal
            return Failure(
                "owner_unreachable",
                f"the session belongs to pod {ordinal}, which this pod ({self.ordinal}) cannot reach: try again",
            )
        if verdict == "made_here" and noun == "session":
            return Failure(
                "session_expired",
                "the session was deleted, was idle for too long, or made room for another: "
                "create a new one and send the history again",
            )
        return Failure("not_found", f"there is no {noun} {identifier!r} here", param=f"{noun}_id")

    def _mac(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), "sha256").hexdigest()[:16]
