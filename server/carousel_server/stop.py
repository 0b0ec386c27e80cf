"""Stop strings over text that arrives in any split. Knows nothing of tokens or calls."""

from carousel_server.failure import Failure


class StopMatcher:
    """Ends a text before the stop string that is complete first; of those complete at once, the longest counts.

    Holds back exactly the longest tail that could still become a stop string, found as in Knuth-Morris-Pratt: for each
    stop string, how many of its characters the text ends with.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        """Raises Failure for an empty stop string: it would end every reply before its first character."""
        if any(not stop for stop in stops):
            raise Failure("invalid_request", "A stop string is empty; leave it out.", param="stop")
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """The text that no stop string can take back. Nothing after a stop."""
        if self.found or not self._stops:
            return "" if self.found else text
        text, done = self._held + text, len(self._held)
        for end in range(done, len(text)):
            if length := self._step(text[end]):
                self.found = True
                self._held = ""
                return text[: end + 1 - length]
        keep = max(self._matched)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def close(self) -> str:
        """The held tail, which has become ordinary text."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> int:
        """Advance every stop string by a character; the length of the longest one that is complete now, or 0."""
        longest = 0
        for index, (stop, borders) in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != char:
                matched = borders[matched - 1]
            matched += stop[matched] == char
            self._matched[index] = matched
            if matched == len(stop):
                longest = max(longest, matched)
        return longest


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        length += stop[index] == stop[length]
        borders[index] = length
    return borders
