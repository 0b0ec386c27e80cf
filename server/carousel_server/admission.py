"""Byte reservations, and who may start. Pure: no clock, no thread, no engine.

First come, first served: the head of the queue waits until it fits, and nobody behind it is looked at before.
"""

from dataclasses import dataclass, field

from carousel_server.engine.protocol import EngineInfo
from carousel_server.failure import Failure
from carousel_server.limits import EngineSettings, Limits
from carousel_server.memory_plan import SAMPLER_VOCAB_BYTES
from carousel_server.units import human_bytes


@dataclass(frozen=True)
class Reservation:
    """What one request holds, in bytes."""

    checkpoint: int = 0  # its state in host memory, grown to its limit
    sampler: int = 0
    response: int = 0  # raw, parsed and queued output
    history: int = 0  # growth of its session, from the end of generation to the claim

    @property
    def total(self) -> int:
        """Sum of the parts."""
        return self.checkpoint + self.sampler + self.response + self.history


def response_bytes(limits: Limits, engine: EngineSettings) -> int:
    """Output of one running request: raw bytes, parsed content, and what waits for a slow reader."""
    return 2 * limits.response_bytes + engine.output_queue_bytes


def checkpoint_bytes(info: EngineInfo, capacity_tokens: int) -> int:
    """Host bytes of a suspended sequence grown to its capacity."""
    return info.fixed_state_bytes + capacity_tokens * info.token_state_bytes


@dataclass
class Ledger:
    """Who holds what, by request, against the limits in force. A reservation has one owner and ends on every path."""

    limits: Limits  # every byte limit set
    engine: EngineSettings
    info: EngineInfo
    held: dict[int, Reservation] = field(default_factory=dict)
    _checkpoint: int = 0
    _response: int = 0
    _total: int = 0

    @property
    def total(self) -> int:
        """Bytes reserved by all requests."""
        return self._total

    @property
    def checkpoint(self) -> int:
        """Bytes of suspended state reserved by all requests."""
        return self._checkpoint

    def needs(self, capacity_tokens: int) -> Reservation:
        """What a request of this capacity reserves before it may run."""
        return Reservation(
            checkpoint=checkpoint_bytes(self.info, capacity_tokens),
            sampler=SAMPLER_VOCAB_BYTES * self.info.vocab_size,
            response=response_bytes(self.limits, self.engine),
        )

    def refuse_impossible(self, capacity_tokens: int) -> None:
        """Failure limits_exceeded for a request that could not run on an empty server."""
        need, most = checkpoint_bytes(self.info, capacity_tokens), self.limits.checkpoint_bytes or 0
        if need > most:
            fitting = max(0, (most - self.info.fixed_state_bytes) // max(1, self.info.token_state_bytes))
            raise Failure(
                "limits_exceeded",
                f"prompt and output of {capacity_tokens} tokens need {human_bytes(need)} of suspended state, "
                f"limits.checkpointBytes is {human_bytes(most)}: ask for at most {fitting} tokens in all",
                param="max_tokens",
            )

    def fits(self, need: Reservation, running: int) -> bool:
        """Whether a request may start beside `running` others now."""
        if running >= self.limits.active_requests:
            return False
        if self._checkpoint + need.checkpoint > (self.limits.checkpoint_bytes or 0):
            return False
        # One share more than active requests: replies still being written out keep what they hold.
        share = response_bytes(self.limits, self.engine)
        return self._response + need.response <= share * (self.limits.active_requests + 1)

    def set(self, owner: int, reservation: Reservation) -> None:
        """What this owner holds from now on; an empty reservation ends it."""
        before = self.held.pop(owner, Reservation())
        if reservation.total:
            self.held[owner] = reservation
        self._checkpoint += reservation.checkpoint - before.checkpoint
        self._response += reservation.response - before.response
        self._total += reservation.total - before.total

    def get(self, owner: int) -> Reservation:
        """What this owner holds."""
        return self.held.get(owner, Reservation())
