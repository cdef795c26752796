"""Clocks and durations. Code that reads the time takes a `Clock`, so that tests can set it."""

from datetime import UTC, datetime, timedelta
from typing import Protocol

from ..errors import UsageError

Seconds = float | timedelta

LONGEST = 100 * 365.25 * 86400
"""A hundred years, in seconds."""


def seconds(value: Seconds, what: str = "duration") -> float:
    """A duration in seconds. `UsageError` unless it is between zero and a hundred years."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    # Callers without a type checker may pass any type; a bool is an int to isinstance.
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= LONGEST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{what} is {value!r}: give seconds, or a timedelta, from zero to a hundred years.")
    return float(number)


class Clock(Protocol):
    """A source of the current time."""

    def now(self) -> datetime:
        """The current time, aware, in UTC."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)
