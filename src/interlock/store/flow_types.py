"""The arguments and results of a store's methods about limits, pauses, batches and dependencies."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from ..core.blocked_jobs import OnFailed
from ..core.limits import Limit, Scope


# ---------------------------------------------------------------- limits and pauses
@dataclass(frozen=True, slots=True)
class DeclaredLimit:
    """A limit that the code declares."""

    scope: Scope
    name: str
    limit: Limit


class Unchanged(Enum):
    """The value of a setting that a change leaves as it is."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A change of a limit at run time. None removes that part of the limit. `burst` belongs to `rate`."""

    max_running: int | Unchanged | None = UNCHANGED
    rate: str | Unchanged | None = UNCHANGED
    burst: int | None = None

    def to_limit(self) -> Limit:
        """The values as a limit. `UsageError` if one is wrong."""
        return Limit(
            None if self.max_running is UNCHANGED else self.max_running,
            None if self.rate is UNCHANGED else self.rate,
            self.burst,
        )


@dataclass(frozen=True, slots=True)
class LimitSeen:
    """A limit or a pause of a queue, a kind, or each concurrency key of a kind."""

    scope: Scope
    name: str
    limit: Limit
    declared: Limit | None
    """As the code declares it; None if it does not."""
    changed_by: str | None
    """Who changed it at run time; None if it is as declared."""
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    running: int
    """How many jobs of the queue or kind run. Zero for concurrency keys."""
    next_start: float
    """Seconds until the rate allows another start."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that an operator or a program changed about a queue, a kind or a schedule."""

    id: str
    at: datetime
    scope: str
    name: str
    event: str
    actor: str
    reason: str | None
    detail: Mapping[str, Any] | None


# ---------------------------------------------------------------- batches and dependencies
@dataclass(frozen=True, slots=True)
class Dependency:
    """A job or a batch that a job waits for, and what happens to the job if it fails."""

    needs: str
    is_batch: bool = False
    on_failed: OnFailed = "cancel"


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch to store. A batch inside a flow names it as its parent."""

    id: str
    name: str
    parent: str | None = None
    actor: str = "app"


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A batch or a flow, and how many of its jobs are in each phase. A job that was redriven counts once."""

    id: str
    name: str
    parent: str | None
    created_at: datetime
    created_by: str
    blocked: int
    """How many jobs wait for others."""
    waiting: int
    """How many other jobs wait."""
    running: int
    succeeded: int
    failed: int

    @property
    def total(self) -> int:
        return self.blocked + self.waiting + self.running + self.succeeded + self.failed

    @property
    def ended(self) -> bool:
        """Whether all jobs have ended."""
        return self.blocked + self.waiting + self.running == 0


@dataclass(frozen=True, slots=True)
class Need:
    """A job or a batch that a job waits for, as it is now."""

    needs: str
    is_batch: bool
    on_failed: OnFailed
    outcome: str | None
    """`succeeded` or `failed`; None if the job still waits for it."""
    name: str
    """The kind of the job, or the name of the batch."""
    state: str
    """The state of the job, or how many of the batch's jobs have ended."""
