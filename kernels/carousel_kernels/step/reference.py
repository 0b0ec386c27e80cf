"""Rows of a step: the definition. The CPU engine decides these on the host."""

from collections.abc import Collection, Sequence


def draft_rows(position: int, waiting: int, rows: int) -> tuple[list[int], list[int]]:
    """Positions and hidden rows of the draft head's first pass in a step that feeds `position`.

    `waiting` rows, the last fed ones, have not been given to the draft head; they are at position - waiting and on, and
    their hidden streams are kept in the order of feeding. The pass has `rows` >= waiting rows whatever waits: the
    first waiting row is repeated in front, which changes nothing and selects no further expert.
    Returns (positions, indices of the kept hidden rows).
    """
    first = position - waiting
    at = [max(first, position - rows + r) for r in range(rows)]
    return at, [p - first for p in at]


def behind(waiting: int, room: int) -> int:
    """Where a step without drafts keeps its row's streams: behind those of the `waiting` rows. Where they fill the
    room, the draft head has taken them all before the step, and the row is the first again."""
    return waiting % room


def accept(fed: Sequence[int], chosen: Sequence[int], stops: Collection[int]) -> int:
    """How many of the fed rows are kept: the first, and each draft that is what the model chose and ends nothing."""
    taken = 1
    while taken < len(fed) and fed[taken] == chosen[taken - 1] and fed[taken] not in stops:
        taken += 1
    return taken
