"""How many tokens to draft for a sequence, from how its drafts fared. Knows no model and no device."""

from dataclasses import dataclass

MEMORY = 0.9  # weight of the past in the running acceptance
PROBE = 32  # steps at width 0 before one draft is tried again


@dataclass(frozen=True)
class DraftCost:
    """Time of a step's pieces, in units of a step without drafts. CPU times of the embedded model on one core."""

    draft: float = 0.16  # one proposal of the draft head: 1.4 ms of 9.2
    row: float = 0.35  # one more row to verify: 3.2 ms


class DraftWidth:
    """Chooses a width for one sequence: the one with the most expected tokens for its cost."""

    def __init__(self, cost: DraftCost | None = None) -> None:
        self.cost = cost or DraftCost()
        self.acceptance = 0.7  # chance that a draft is accepted, given that those before it were
        self._idle = 0

    def choose(self, most: int) -> int:
        """0 .. most."""
        best = max(range(most + 1), key=lambda width: (self.gain(width), -width))
        if best == 0 and most > 0:
            self._idle += 1
            if self._idle >= PROBE:
                self._idle = 0
                return 1
        return best

    def gain(self, width: int) -> float:
        """Expected tokens a unit of time."""
        tokens = sum(self.acceptance**i for i in range(width + 1))
        return tokens / (1 + width * (self.cost.draft + self.cost.row))

    def observe(self, proposed: int, accepted: int) -> None:
        """After a step: of `proposed` drafts the first `accepted` were right; drafts behind a wrong one say nothing."""
        for i in range(min(accepted + 1, proposed)):
            self.acceptance = MEMORY * self.acceptance + (1 - MEMORY) * (1.0 if i < accepted else 0.0)
