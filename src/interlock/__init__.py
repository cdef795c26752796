"""Interlock: a durable job engine. A job's lifecycle is a declared state machine, and the database enforces it."""

from .app import App
from .core.backoff import Backoff
from .core.error_policy import RetryDecision
from .core.job import AuditEntry, Execution, Job
from .core.lifecycle import Lifecycle
from .errors import (
    Cancelled,
    CommitTimeout,
    InterlockError,
    JobFailed,
    KeyReused,
    LeaseLost,
    LifecycleError,
    NotApplied,
    NotFound,
    NotMigrated,
    PayloadError,
    Refused,
    TransitionRefused,
    Unavailable,
    UsageError,
)
from .jobs.handle import JobHandle
from .jobs.kind import Kind
from .jobs.request import JobRequest
from .jobs.results import Answer, Completed, External, Fail, Failed, Gone, InProgress, Reject, Retry, Snooze
from .jobs.run import Run, SyncRun
from .operate.explain import Explanation
from .operate.status import Status
from .operate.verify import Report, Violation
from .store.contract import Cursor, Tx
from .store.types import Enqueued
from .worker.worker import Worker

__all__ = [
    "Answer",
    "App",
    "AuditEntry",
    "Backoff",
    "Cancelled",
    "CommitTimeout",
    "Completed",
    "Cursor",
    "Enqueued",
    "Execution",
    "Explanation",
    "External",
    "Fail",
    "Failed",
    "Gone",
    "InProgress",
    "InterlockError",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobRequest",
    "KeyReused",
    "Kind",
    "LeaseLost",
    "Lifecycle",
    "LifecycleError",
    "NotApplied",
    "NotFound",
    "NotMigrated",
    "PayloadError",
    "Refused",
    "Reject",
    "Report",
    "Retry",
    "RetryDecision",
    "Run",
    "Snooze",
    "Status",
    "SyncRun",
    "TransitionRefused",
    "Tx",
    "Unavailable",
    "UsageError",
    "Violation",
    "Worker",
]
