"""The pause of an idle worker: it grows while no job is due, with jitter so that workers do not poll together."""

from collections.abc import Callable

SHORTEST = 0.05
LONGEST = 5.0


class PollBackoff:
    """The growing pause between two polls."""

    def __init__(self, random: Callable[[], float], *, shortest: float = SHORTEST, longest: float = LONGEST) -> None:
        self._random = random
        self._shortest = shortest
        self._longest = longest
        self._next = shortest

    @property
    def fresh(self) -> bool:
        """Whether the last poll found a job."""
        return self._next == self._shortest

    def next(self, *, at_once: bool = False) -> float:
        """Return the next pause, and double the one after it. With `at_once`, the longest."""
        if at_once:
            self._next = self._longest
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause * (0.75 + 0.5 * self._random())

    def reset(self) -> None:
        self._next = self._shortest
