"""The errors that Interlock raises. Each has one sentence that says what happened and what to do.

InterlockError
├── NotFound            no job, lifecycle or kind has this name or id
├── PayloadError        a payload, result, key or name cannot be stored
├── Refused             the kind's `admit` function refused the job: `.reason`
├── TransitionRefused   the lifecycle does not allow this transition from the job's state
├── LeaseLost           the attempt must stop: its worker lost the lease, or is stopping
├── JobFailed           the job whose result was requested did not succeed: `.job`
├── NotMigrated         the database lacks this version's schema or a lifecycle
├── InvalidToken        this app did not sign the token of a question
├── KeyReused           the idempotency key belongs to a job with another payload
├── Cancelled           someone asked the job to stop
├── LifecycleError      a lifecycle can never work
├── NotApplied          raised by your code inside an effect: the call did not happen
├── Unavailable         the database is unreachable or cannot be used now
├── CommitTimeout       a commit function took longer than its kind allows; also a TimeoutError
└── UsageError          a call or declaration can never work; also a ValueError
"""

from .core.job import Job


class InterlockError(Exception):
    """The base class of every error that Interlock raises."""


class NotFound(InterlockError):
    """No job, lifecycle or kind has this name or id."""


class PayloadError(InterlockError):
    """A payload, result, key or name cannot be stored. Nothing was stored."""


class Refused(InterlockError):
    """The kind's `admit` function refused the job. Nothing was stored."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TransitionRefused(InterlockError):
    """The lifecycle does not allow this transition from the job's state. Nothing changed."""


class LeaseLost(InterlockError):
    """The attempt must stop, and its write was not stored.

    Its lease expired and another worker may have taken over the execution, its worker is stopping, or it ran longer
    than its kind's `max_runtime`.
    """


class JobFailed(InterlockError):
    """The job whose result was requested ended without success."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.job = job

    def __str__(self) -> str:
        why = self.job.last_error or self.job.cancel_reason or "no reason was recorded"
        return f"Job {self.job.id} ({self.job.kind}) ended as {self.job.state} at attempt {self.job.attempt}: {why}"


class NotMigrated(InterlockError):
    """The database lacks the schema of this version, or a lifecycle that the app declares."""


class InvalidToken(InterlockError):
    """The token is not valid for this app: it is incomplete, was changed, or was signed with another secret."""


class KeyReused(InterlockError):
    """The idempotency key belongs to a job with another payload. Nothing was stored."""


class Cancelled(InterlockError):
    """Someone asked the job to stop. The next call of a method of the run raises it in the handler."""


class LifecycleError(InterlockError):
    """A lifecycle can never work. Declaring it raises this error."""


class NotApplied(InterlockError):
    """Raised by your code inside an effect: the external call did not happen, so the next attempt may make it."""


class Unavailable(InterlockError):
    """The database is unreachable or cannot be used now.

    If the connection was lost, the last write may have happened.
    """


class CommitTimeout(InterlockError, TimeoutError):
    """A commit function took longer than its kind's `commit_timeout`. Its writes were rolled back."""


class UsageError(InterlockError, ValueError):
    """A call or declaration can never work."""
