"""The exceptions that a handler raises to retry, snooze, fail or reject, and the answers of a reconcile function."""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic

from typing_extensions import TypeVar

from ..core.clock import Seconds, seconds
from ..errors import UsageError

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Retry(Exception):
    """Raise it to retry the job `after` this long, or after the kind's backoff. It spends a try."""

    def __init__(self, reason: str = "", *, after: Seconds | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = None if after is None else seconds(after, "after")


class Snooze(Exception):
    """Raise it to run the job again `after` this long, or at `until`. It spends no try."""

    def __init__(self, reason: str = "", *, after: Seconds = 60.0, until: datetime | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = seconds(after, "after")
        if until is not None and until.tzinfo is None:
            raise UsageError(
                f"Snooze until {until.isoformat()} has no time zone: give an aware datetime, such as one made with "
                "tzinfo=UTC."
            )
        self.until = until
        """If given, it replaces `after`."""


class Fail(Exception):
    """Raise it to fail the job without a retry."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Reject(Exception):
    """Raise it to reject the job by a rule of your own, without a retry."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class External(Generic[R_co]):
    """Return it from a handler to hand the work over to an external system. The result will be an R."""

    external_id: str


# The answers about one external id. An id that the answer leaves out is *missing*.
@dataclass(frozen=True)
class InProgress(Generic[R_co]):
    """The work continues.

    With `done`, the work has begun, and the job takes its `start` transition if it has one. Without, the work waits.
    """

    done: float | None = None
    total: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Completed(Generic[R_co]):
    """The work is done, with this result."""

    value: R_co


@dataclass(frozen=True)
class Failed(Generic[R_co]):
    """The work has failed in the external system."""

    reason: str


@dataclass(frozen=True)
class Gone(Generic[R_co]):
    """The work was cancelled in the external system."""

    reason: str = ""


Answer = InProgress[R] | Completed[R] | Failed[R] | Gone[R]
