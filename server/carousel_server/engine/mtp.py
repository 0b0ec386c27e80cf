"""How many tokens to draft for a sequence, from how its drafts fared. Knows no model and no device."""

from dataclasses import dataclass

MEMORY = 0.9  # weight of the past in the running acceptance
PROBE = 32  # steps at width 0 before one draft is tried again


@dataclass(frozen=True)
class DraftCost:
    """Time of a step's pieces, in units of a step without drafts."""

    draft: float  # one proposal of the draft head
    row: float  # one more row to verify
    first: float = 0.0  # drafting at all: the draft head's own row, and more rows than one


# On one core (tests/bench/cpu_decode.py) steps that made 0.8, 1.5 and 2.1 drafts on average took 1.7, 1.8 and 2.1 times
# one without drafts.
CPU = DraftCost(draft=0.12, row=0.2, first=0.35)


class DraftWidth:
    """Chooses a width for one sequence: the one with the most expected tokens for its cost."""

    def __init__(self, cost: DraftCost | None = None) -> None:
        self.cost = cost or CPU
        self.acceptance = 0.7  # chance that a draft is accepted, given that those before it were
        self._idle = 0

    def choose(self, most: int) -> int:
        """0 .. most: the one with the largest gain, of equal ones the smallest. Where that is 0, now and then 1, to see
        whether drafts fare better by now."""
        best = max(range(most + 1), key=lambda width: (self._gain(width), -width))
        if best == 0 and most > 0:
            self._idle += 1
            if self._idle >= PROBE:
                self._idle = 0
                return 1
        return best

    def _gain(self, width: int) -> float:
        """Expected tokens a unit of time."""
        tokens = sum(self.acceptance**i for i in range(width + 1))
        first = self.cost.first if width else 0.0
        return tokens / (1 + first + width * (self.cost.draft + self.cost.row))

    def observe(self, proposed: int, accepted: int) -> None:
        """After a step: of `proposed` drafts the first `accepted` were right; drafts behind a wrong one say nothing."""
        for i in range(min(accepted + 1, proposed)):
            self.acceptance = MEMORY * self.acceptance + (1 - MEMORY) * (1.0 if i < accepted else 0.0)
