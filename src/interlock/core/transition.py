"""Decided changes: `Move` for an owned execution and `Take` for a waiting job. Also the `Policy` of a kind."""

from dataclasses import dataclass, field
from typing import Literal

from .backoff import Backoff
from .job import Phase, Status
from .machine import Arrow


@dataclass(slots=True)  # not frozen: one is made per finished job, and freezing costs more than deciding
class Move:
    """One decided change of an execution and its job. The store applies all of it or nothing. Do not modify it.

    It is fenced: it applies only while the execution `(job_id, attempt, holder)` has `from_status` and the job is in
    `source`. `path` has zero to two transitions; the last one leads to `state`. The store adds the durations to its
    own time.
    """

    job_id: str
    attempt: int
    holder: int
    from_status: Status
    to_status: Status
    source: str
    state: str
    phase: Phase
    tries_left: int
    path: tuple[Arrow, ...] = ()
    ended_by: str | None = None
    """The event that ends the execution; set exactly when `to_status` is DONE or ABORTED."""
    delay: float | None = None
    """Seconds until a job that returns to a waiting state is due."""
    lost: bool = False
    """Whether a lease was lost; `jobs.lease_losses` counts it."""
    error: str | None = None
    result: str | None = None
    """The value as JSON text. For a handed-over question, its terms."""
    frees_key: bool = False
    held_reason: str | None = None
    external_id: str | None = None
    check_in: float | None = None
    """Seconds until a reconciler checks an external execution again."""
    missing: bool | None = None
    """Whether the external system does not know the work; None changes nothing. The store keeps the time of the first
    such answer, and clears it when the work is found again."""
    actor: str = "worker"
    reason: str | None = None
    saw_cancel_request: bool = False
    """Whether the decision took the job's cancel request into account. If not, the store refuses to return the job to
    a waiting state, since that would lose the request."""
    progress: str | None = None
    usage: str | None = None
    """The last progress and usage of the handler, as JSON text; None changes nothing."""


@dataclass(frozen=True, slots=True)
class Take:
    """A transition of a waiting job by an operator or by maintenance: cancel, expire, reject.

    It is fenced by `(job_id, version)`. It inserts an ABORTED execution, so that the job's state can still be computed
    from its executions.
    """

    job_id: str
    version: int
    attempt: int
    """The job's attempt when it was read; the inserted execution is the next one."""
    kind: str
    arrow: Arrow
    phase: Phase
    actor: str
    reason: str | None = None
    frees_key: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of a kind: its tries, its backoff, and what happens after a lost lease."""

    tries: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    on_lost_lease: Literal["rerun", "fail", "hold"] = "rerun"
    key_until: tuple[str, ...] = ()
    """A job that enters one of these states frees its idempotency key."""
