"""What a store reports about kinds and queues: how many jobs wait, run and fail, and work that was handed over."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ExternalWork:
    """The handed-over work of a kind, and the health of its checks."""

    kind: str
    executions: int
    """How many live executions were handed over, including those that are being checked."""
    overdue: float
    """Seconds for which the longest due check has been due; zero if none is due."""
    every: float
    batch: int
    failures: int = 0
    """How many checks in a row have failed."""
    error: str | None = None
    down_since: datetime | None = None

    @property
    def late(self) -> bool:
        """Whether a check is overdue by more than two full passes: too few reconcilers run, or none."""
        return self.overdue > 2 * self.every * max(-(-self.executions // self.batch), 1)


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job that failed for good, without its payload."""

    id: str
    state: str
    attempt: int
    finished_at: datetime
    error: str | None


@dataclass(frozen=True, slots=True)
class Failures:
    """The jobs of a kind that failed recently and were not redriven."""

    kind: str
    count: int
    newest: tuple[FailedJob, ...]
    """Some of these jobs, the newest first."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How many jobs of a kind wait in a queue, and how many run."""

    kind: str
    queue: str
    due: int
    """Jobs that a claim could lease now."""
    later: int
    """Jobs that are not due yet."""
    held: int
    running: int
    oldest: float
    """Seconds for which the longest due job has been due; zero if none is due."""
    blocked: int = 0
    """Jobs that wait for other jobs."""
