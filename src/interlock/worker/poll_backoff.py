"""How long an idle worker pauses: ever longer while nothing is found, and jittered, so that workers do not knock together."""

from collections.abc import Callable

SHORTEST = 0.05
LONGEST = 5.0


class Pace:
    """The adaptive pause between two looks for work."""

    def __init__(self, draw: Callable[[], float], *, shortest: float = SHORTEST, longest: float = LONGEST) -> None:
        self._draw = draw
        self._shortest = shortest
        self._longest = longest
        self._next = shortest

    @property
    def fresh(self) -> bool:
        """Whether something was found at the last look."""
        return self._next == self._shortest

    def next(self) -> float:
        """The next pause; the one after it is longer."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause * (0.75 + 0.5 * self._draw())

    def reset(self) -> None:
        self._next = self._shortest
