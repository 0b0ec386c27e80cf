"""A sequence as the engine keeps it, and an immutable copy of one."""

from dataclasses import dataclass, field

from carousel_server.engine.mtp import DraftWidth
from carousel_server.engine.state import SavedPart, Slot


@dataclass(eq=False)
class TorchSequence:
    """Live while `slot` is set, suspended while only `saved` is, unusable after both are gone.

    Rows 0 .. length - 1 are fed. The state of any length from `floor` on can still be gone back to.
    The draft head has rows 0 .. drafted - 1; it needs the token that follows a row, so it is at most length - 1.
    """

    capacity: int
    slot: Slot | None
    length: int = 0
    floor: int = 0
    drafted: int = 0
    draftable: bool = True  # False when rows of the draft head are missing for good
    tokens: list[int] = field(default_factory=list)
    width: DraftWidth = field(default_factory=DraftWidth)
    saved: SavedPart | None = None
    saved_draft: SavedPart | None = None
    failed: bool = False

    @property
    def live(self) -> bool:
        """In a slot, not in host memory."""
        return self.slot is not None


@dataclass(frozen=True)
class TorchSnapshot:
    """State, logits and streams after `tokens`, in host memory; never changed."""

    tokens: tuple[int, ...]
    main: SavedPart
    draft: SavedPart | None  # rows 0 .. len(tokens) - 2; None when the sequence could not draft

    @property
    def nbytes(self) -> int:
        """Host bytes."""
        return self.main.nbytes + (self.draft.nbytes if self.draft is not None else 0)
