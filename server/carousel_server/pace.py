"""How long a prefill chunk may be while others wait. Pure."""

from dataclasses import dataclass

ALIGNMENT = 64  # chunks end on absolute multiples of this, so that pacing never changes a result
TARGET_SECONDS = 0.2  # the longest pause that a chunk should make in another request's stream


@dataclass
class Pace:
    """Measured prefill speed, and the chunk that fits the target."""

    most: int
    paced: bool = True  # False where experts are streamed: a chunk then costs seconds whatever its size
    tokens_per_second: float | None = None

    def chunk(self, *, alone: bool) -> int:
        """Tokens of the next chunk: the largest alone, about TARGET_SECONDS' worth beside others."""
        if alone or not self.paced or self.tokens_per_second is None:
            return self.most
        fitting = int(self.tokens_per_second * TARGET_SECONDS) // ALIGNMENT * ALIGNMENT
        return max(ALIGNMENT, min(self.most, fitting))

    def observe(self, tokens: int, seconds: float) -> None:
        """A chunk's time; short ones say little about speed and are left out."""
        if tokens >= ALIGNMENT and seconds > 0:
            speed = tokens / seconds
            known = self.tokens_per_second
            self.tokens_per_second = speed if known is None else 0.7 * known + 0.3 * speed


def chunk_end(position: int, length: int, chunk: int, boundaries: tuple[int, ...]) -> int:
    """Where a chunk that begins at `position` ends: the next boundary, the prompt's end, or a multiple of 64."""
    aligned = (position + max(chunk, ALIGNMENT)) // ALIGNMENT * ALIGNMENT
    stops = [b for b in boundaries if b > position]
    return min([length, aligned, *stops[:1]])
