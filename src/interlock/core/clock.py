"""Time, injected: what reads a clock takes one, so that every test can set the time."""

from datetime import UTC, datetime, timedelta
from typing import Protocol

from .errors import UsageError

Seconds = float | timedelta

LONGEST = 100 * 365.25 * 86400
"""Seconds of a hundred years."""


def seconds(value: Seconds, what: str = "duration") -> float:
    """A duration as seconds. `UsageError` unless it lies between zero and a hundred years."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    # Callers without a type checker pass anything at all; a bool is an int to isinstance.
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= LONGEST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{what} is {value!r}: give seconds, or a timedelta, from zero to a hundred years.")
    return float(number)


class Clock(Protocol):
    """Tells the time of day."""

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)
