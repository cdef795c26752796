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
        self._announced = False

    @property
    def fresh(self) -> bool:
        """Whether the last poll found a job."""
        return self._next == self._shortest

    def next(self, *, starved: bool = False) -> float:
        """Return the next pause, and double the one after it.

        If the last jobs were announced, it is the longest at once, unless the worker is starved: it waits for capacity
        that another worker may free without an announcement.
        """
        if self._announced and not starved:
            self._next = self._longest
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause * (0.75 + 0.5 * self._random())

    def reset(self, *, announced: bool = False) -> None:
        """Start again with the shortest pause, because jobs were found. `announced`: a notification came first."""
        self._next = self._shortest
        self._announced = announced
