"""The result of an operation on many jobs."""

from dataclasses import dataclass, field

from ..store.selection import JobCount

ERRORS = 10
"""The most errors that a result lists. It counts all of them."""


@dataclass(frozen=True, slots=True)
class BulkError:
    """A job that could not be changed, and why."""

    job_id: str
    error: str


@dataclass(slots=True)
class BulkResult:
    """The result of an operation on many jobs, or what it has done so far."""

    counts: tuple[JobCount, ...] = ()
    """How many jobs matched when the operation began, by kind and state."""
    changed: int = 0
    asked_to_stop: int = 0
    """How many of the changed jobs are running, and were asked to stop."""
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    """How many jobs were not changed, by the reason."""
    failed: int = 0
    """How many jobs could not be changed because of an error."""
    errors: list[BulkError] = field(default_factory=list[BulkError])
    """The first ten of these errors."""

    @property
    def matched(self) -> int:
        """How many jobs matched when the operation began."""
        return sum(count.jobs for count in self.counts)

    @property
    def done(self) -> int:
        """How many jobs were changed, were skipped or have failed."""
        return self.changed + sum(self.skipped.values()) + self.failed

    def skip(self, reason: str, jobs: int = 1) -> None:
        """Count jobs that were not changed."""
        if jobs:
            self.skipped[reason] = self.skipped.get(reason, 0) + jobs

    def fail(self, job_id: str, error: Exception) -> None:
        """Count a job that could not be changed."""
        self.failed += 1
        if len(self.errors) < ERRORS:
            self.errors.append(BulkError(job_id, str(error) or type(error).__name__))
