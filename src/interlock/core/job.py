"""The stored records: a job, an execution of a job, and an entry of its audit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Phase = Literal["pending", "running", "succeeded", "failed"]
Status = Literal["LEASED", "IN_PROGRESS", "COMMITTED", "DONE", "ABORTED"]

LIVE: tuple[Status, ...] = ("LEASED", "IN_PROGRESS", "COMMITTED")


@dataclass(slots=True)
class Job:
    """One unit of work. Its `state` is computed from its executions."""

    id: str
    kind: str
    queue: str
    priority: int
    lifecycle: str
    lifecycle_version: int
    state: str
    phase: Phase
    version: int
    attempt: int
    tries: int
    tries_left: int
    lease_losses: int
    payload: Mapping[str, Any]
    tags: Mapping[str, str]
    trace: Mapping[str, str] | None
    result: Any
    last_error: str | None
    due_at: datetime
    expires_at: datetime | None
    scheduled_for: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    idempotency_key: str | None
    key_freed: bool
    unique_key: str | None
    cancel_requested_at: datetime | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    held_at: datetime | None
    held_reason: str | None
    redrive_of: str | None
    root: str | None
    """The first job of a chain of redrives; None if this is the first. Keys of external calls use its id."""
    progress: tuple[float, float | None, str] | None = None
    concurrency_key: str | None = None
    batch: str | None = None
    """The batch that the job belongs to."""
    blocked_at: datetime | None = None
    """Since when the job waits for other jobs; None if it does not."""
    awaited: bool = False
    """Whether another job waits, or waited, for this job directly, and not through a batch."""

    @property
    def ended(self) -> bool:
        return self.phase in ("succeeded", "failed")


@dataclass(slots=True)
class Execution:
    """One attempt at a job. Writes to it are fenced by (job_id, attempt, holder)."""

    job_id: str
    attempt: int
    holder: int
    kind: str
    lease_owner: str
    lease_expires_at: datetime
    heartbeat_at: datetime
    status: Status
    state: str
    ended_by: str | None
    error: str | None
    external_id: str | None
    missing_since: datetime | None
    next_check_at: datetime | None
    progress: tuple[float, float | None, str] | None
    usage: Mapping[str, float] | None
    result: Any
    leased_at: datetime
    started_at: datetime | None
    committed_at: datetime | None
    finished_at: datetime | None

    @property
    def exec_id(self) -> str:
        return f"{self.job_id}:{self.attempt}"

    @property
    def live(self) -> bool:
        return self.status in LIVE


@dataclass(slots=True)
class AuditEntry:
    """One entry of a job's history: a transition (`n` is 0) or a note (`n` is above 0)."""

    job_id: str
    version: int
    n: int
    attempt: int | None
    event: str
    from_state: str | None
    to_state: str | None
    actor: str
    reason: str | None
    at: datetime
    detail: Mapping[str, Any] | None = None
    seq: int = field(default=0, kw_only=True)
    """The position of the entry in its job's history, from 0."""
