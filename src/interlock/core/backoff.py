"""Backoff: how long a failed job waits before it is tried again."""

import math
from dataclasses import dataclass

from ..errors import UsageError
from .clock import Seconds, seconds


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """Exponential backoff with a cap and full jitter. Durations are seconds or a timedelta.

    The ceiling is `first` after the first failure and grows by `factor` with each further failure, up to `cap`. With
    jitter, the delay is random between zero and the ceiling, so that jobs that failed together do not retry together.
    Without jitter, the delay is the ceiling.
    """

    first: float
    factor: float
    cap: float
    jitter: bool

    def __init__(self, first: Seconds = 1.0, *, factor: float = 2.0, cap: Seconds = 900.0, jitter: bool = True) -> None:
        if not (math.isfinite(factor) and factor >= 1):
            raise UsageError(
                f"The factor of a backoff is {factor!r}: give a number that is 1 or more, so that delays do not shrink."
            )
        object.__setattr__(self, "first", seconds(first, "the first delay of a backoff"))
        object.__setattr__(self, "factor", float(factor))
        object.__setattr__(self, "cap", seconds(cap, "the cap of a backoff"))
        object.__setattr__(self, "jitter", jitter)

    def ceiling(self, failures: int) -> float:
        """The longest delay after this many failures. It is always finite."""
        if self.first == 0 or self.cap <= self.first:
            return min(self.first, self.cap)
        # Compare logarithms: the power overflows after about a thousand failures.
        steps = max(failures, 1) - 1
        room = math.log(self.cap) - math.log(self.first)
        return self.cap if steps * math.log(self.factor) >= room else min(self.first * self.factor**steps, self.cap)

    def delay(self, failures: int, random: float) -> float:
        """Seconds to wait after this many failures. `random` is in [0, 1)."""
        return random * self.ceiling(failures) if self.jitter else self.ceiling(failures)
