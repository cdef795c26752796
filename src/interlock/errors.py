"""What Interlock raises, each with one sentence that says what happened and what to do.

    InterlockError
    ├── NotFound            there is no such job, lifecycle or kind
    ├── PayloadError        a value, key or name that cannot be stored
    ├── Refused             `admit` said no at enqueue: `.reason`
    ├── TransitionRefused   the lifecycle draws no such arrow from where the job is
    ├── LeaseLost           the execution is no longer ours to move
    ├── JobFailed           `result` of a job that did not succeed: `.job`
    ├── NotMigrated         the database lacks this code's schema or lifecycle
    ├── KeyReused           the idempotency key belongs to another payload
    ├── Cancelled           the job was asked to stop
    ├── LifecycleError      a lifecycle that can never work
    ├── NotApplied          raised by a caller inside an effect
    ├── Unavailable         the database cannot be used now, whatever is asked of it
    ├── CommitTimeout       a commit function took longer than its kind allows; also a TimeoutError
    └── UsageError          a call or declaration that can never work; also a ValueError
"""

from .job import Job


class InterlockError(Exception):
    """Everything that Interlock itself raises."""


class NotFound(InterlockError):
    """There is no such job, lifecycle or kind."""


class PayloadError(InterlockError):
    """A value, key or name that cannot be stored. Nothing of it was."""


class Refused(InterlockError):
    """`admit` said no at enqueue, and nothing was stored."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TransitionRefused(InterlockError):
    """The job cannot go this way from where it is. Nothing changed."""


class LeaseLost(InterlockError):
    """The execution is no longer ours: its lease ended and another took it. Nothing of the attempt was stored."""


class JobFailed(InterlockError):
    """The job whose result was asked for ended without success."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.job = job

    def __str__(self) -> str:
        why = self.job.last_error or self.job.cancel_reason or "no reason was given"
        return f"Job {self.job.id} ({self.job.kind}) ended as {self.job.state} at attempt {self.job.attempt}: {why}"


class NotMigrated(InterlockError):
    """The database lacks this code's schema, or a lifecycle that it declares."""


class KeyReused(InterlockError):
    """The idempotency key belongs to a job with another payload. Nothing was stored."""


class Cancelled(InterlockError):
    """The job was asked to stop; raised where its handler next looks."""


class LifecycleError(InterlockError):
    """A lifecycle that can never work, refused when it is declared."""


class NotApplied(InterlockError):
    """Raised by a caller inside an effect: the outside call surely did not happen, so there is no doubt to settle."""


class Unavailable(InterlockError):
    """The database cannot be used now, whatever is asked of it. Where the connection was lost in the middle, nobody knows whether the last thing was done."""


class CommitTimeout(InterlockError, TimeoutError):
    """A commit function took longer than its kind's `commit_timeout`. What it wrote was rolled back."""


class UsageError(InterlockError, ValueError):
    """A call or declaration that can never work."""
