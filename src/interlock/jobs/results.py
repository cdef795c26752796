"""What a handler and a reconciler can answer, beside returning a value."""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic

from typing_extensions import TypeVar

from .clock import Seconds, seconds
from .errors import UsageError

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Retry(Exception):
    """Try again, `after` this long, or after the kind's backoff. Spends a try."""

    def __init__(self, reason: str = "", *, after: Seconds | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = None if after is None else seconds(after, "after")


class Snooze(Exception):
    """Not now: come back `after` this long, or at `until`. Spends no try."""

    def __init__(self, reason: str = "", *, after: Seconds = 60.0, until: datetime | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = seconds(after, "after")
        if until is not None and until.tzinfo is None:
            raise UsageError(f"Snooze until {until.isoformat()} has no time zone: give an aware datetime, such as one made with tzinfo=UTC.")
        self.until = until
        """Where given, it holds, and `after` does not."""


class Fail(Exception):
    """The job has failed, and trying again would not help."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Reject(Exception):
    """Policy says no. Never retried."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class External(Generic[R_co]):
    """Returned by a handler: the work goes on elsewhere, and its value will be an R."""

    external_id: str


# Per execution; one that a reconciler does not name is *missing*.
@dataclass(frozen=True)
class Going(Generic[R_co]):
    """The work goes on. With `done` it has begun, which walks `start` where that is drawn; without, it is known there and waits for its turn."""

    done: float | None = None
    total: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Complete(Generic[R_co]):
    """The work is done, and this is its value."""

    value: R_co


@dataclass(frozen=True)
class Failed(Generic[R_co]):
    """The work has failed outside."""

    reason: str


@dataclass(frozen=True)
class Gone(Generic[R_co]):
    """Cancelled outside."""

    reason: str = ""


Answer = Going[R] | Complete[R] | Failed[R] | Gone[R]
