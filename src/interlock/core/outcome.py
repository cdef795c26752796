"""Outcomes: the events that a worker, maintenance or a reconciler reports about an execution.

`decide` turns each outcome into a move.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Started:
    """The work begins. `walks` is False if a reconciler takes the `start` transition later."""

    walks: bool = True


@dataclass(frozen=True, slots=True)
class Advanced:
    """The handler advanced the job to a stage."""

    stage: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned.

    With a `boundary`, the move commits the value, and a later one finishes the job. Without, one move does both.
    """

    value: str
    """The result as JSON text."""
    boundary: bool
    begins: bool = False
    """Whether the move also takes `start`: external work may end before a reconciler has seen it begin."""
    reason: str | None = None
    """Why the job succeeds, if its handler did not return the value."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The finish function returned or, with an error, was given up. The job succeeds in both cases."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Raised:
    error: str
    retryable: bool
    after: float | None = None
    """Seconds until the retry, chosen by the kind. It replaces the backoff."""
    at_least: float = 0.0
    """Seconds that the error requests. They can lengthen the backoff, but not shorten it."""

    def pause(self, backoff: float) -> float:
        """Seconds until the retry, given the kind's backoff."""
        return max(backoff, self.at_least) if self.after is None else self.after


@dataclass(frozen=True, slots=True)
class Errored(_Raised):
    """The handler raised, or the process in which it ran died."""

    crashed: bool = False
    """Whether the process died. As with a lost lease, the handler may not be the cause."""
    shared: bool = False
    """Whether other jobs ran in the process that died: any of them may have killed it."""


@dataclass(frozen=True, slots=True)
class FailedFinally:
    """The job failed, and is not retried."""

    reason: str
    seen: bool = False
    """Whether a reconciler saw the failure in the external system."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A rule of the user refuses the job. It is not retried."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease expired, and the process that reports it has adopted the execution."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """The worker returns the job to its queue. The job keeps its tries; if it has not started, also its due time."""

    reason: str
    started: bool = True


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The job runs again after this many seconds. It keeps its tries."""

    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The worker stopped the handler because of a cancel request."""

    reason: str | None
    by: str


@dataclass(frozen=True, slots=True)
class Handed:
    """The handler handed the work over to an external system."""

    external_id: str
    check_in: float
    """Seconds until a reconciler first checks the work."""
    question: str | None = None
    """If the work is a question: its terms, as JSON text."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A reconciler checked external work that is not done yet."""

    check_in: float
    """Seconds until the next check."""
    seen: bool | None
    """Whether the external system knows the work; None if it did not answer."""
    begun: bool = False
    """Whether the work has begun, which takes the `start` transition if there is one."""


@dataclass(frozen=True, slots=True)
class Unrecorded(_Raised):
    """The external work is done, but recording its result raised. It spends a try and is checked again."""


@dataclass(frozen=True, slots=True)
class GoneExternally:
    """The external system cancelled the work."""

    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """An operator must release the job before it runs again."""

    reason: str


Outcome = (
    Started
    | Advanced
    | Returned
    | Finished
    | Errored
    | FailedFinally
    | Rejected
    | Lost
    | Requeued
    | Snoozed
    | CancelRequested
    | Handed
    | Looked
    | Unrecorded
    | GoneExternally
    | Held
)
