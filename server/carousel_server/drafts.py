"""How many draft tokens a request proposes: more while they are accepted, none while they are not. Pure."""

from dataclasses import dataclass

_FADING = 0.9  # a step's weight in the mean falls to a third in about ten steps
_WORTH = 0.35  # below this acceptance a draft costs more than it saves (a verified row is nearly free, a draft is not)
_PROBE_EVERY = 32


@dataclass
class Drafts:
    """Adaptive width of one request. Never changes the text, only its speed."""

    most: int
    accepted: float = 1.0  # fading mean of the share of proposed drafts that were accepted
    idle_steps: int = 0

    def width(self, room: int) -> int:
        """Drafts for the next step when at most `room` tokens may follow."""
        if self.most == 0 or room <= 0:
            return 0
        if self.accepted < _WORTH:
            self.idle_steps += 1
            if self.idle_steps % _PROBE_EVERY:
                return 0
            return 1
        wanted = self.most if self.accepted > 0.6 else 1
        return min(wanted, self.most, room)

    def observe(self, proposed: int, accepted: int) -> None:
        """What a step with drafts brought."""
        if proposed:
            self.accepted = _FADING * self.accepted + (1 - _FADING) * accepted / proposed
