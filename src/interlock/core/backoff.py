"""Backoff: how long a failed job waits before it is tried again."""

import math
from dataclasses import dataclass

from .clock import Seconds, seconds
from .errors import UsageError


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """Exponential, capped, with full jitter. Durations are seconds or a timedelta.

    The ceiling is `first` after the first failure, `factor` times as much after each further one, and never above `cap`. The delay is spread evenly
    from zero to the ceiling, so that jobs that failed together do not come back together; without jitter it is the ceiling.
    """

    first: float
    factor: float
    cap: float
    jitter: bool

    def __init__(self, first: Seconds = 1.0, *, factor: float = 2.0, cap: Seconds = 900.0, jitter: bool = True) -> None:
        if not (math.isfinite(factor) and factor >= 1):
            raise UsageError(f"the factor of a backoff is {factor!r}: give a number that is 1 or more, so that delays do not shrink")
        object.__setattr__(self, "first", seconds(first, "the first delay of a backoff"))
        object.__setattr__(self, "factor", float(factor))
        object.__setattr__(self, "cap", seconds(cap, "the cap of a backoff"))
        object.__setattr__(self, "jitter", jitter)

    def ceiling(self, failures: int) -> float:
        """The longest delay after so many failures. Finite, however many."""
        if self.first == 0 or self.cap <= self.first:
            return min(self.first, self.cap)
        # Compared as logarithms, since the power itself overflows after some thousand failures.
        steps = max(failures, 1) - 1
        room = math.log(self.cap) - math.log(self.first)
        return self.cap if steps * math.log(self.factor) >= room else min(self.first * self.factor**steps, self.cap)

    def delay(self, failures: int, draw: float) -> float:
        """Seconds to wait after so many failures, where `draw` in [0, 1) is the chance."""
        return draw * self.ceiling(failures) if self.jitter else self.ceiling(failures)
