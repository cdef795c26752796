"""Interlock: a durable job engine. A job's lifecycle is a declared state machine, and the database enforces it."""

from .answers import Answer, Complete, External, Fail, Failed, Going, Gone, Reject, Retry, Snooze
from .app import App
from .backoff import Backoff
from .call import Call
from .effect import aged
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
from .explain import Explanation
from .job import AuditEntry, Execution, Job
from .kind import Kind
from .lifecycle import Lifecycle
from .records import Enqueued
from .run import Run, SyncRun
from .status import Status
from .store import Tx
from .taxonomy import Verdict
from .verify import Report, Violation
from .worker.worker import Worker

__all__ = [
    "Answer",
    "App",
    "AuditEntry",
    "Backoff",
    "Call",
    "Cancelled",
    "CommitTimeout",
    "Complete",
    "Enqueued",
    "Execution",
    "Explanation",
    "External",
    "Fail",
    "Failed",
    "Going",
    "Gone",
    "InterlockError",
    "Job",
    "JobFailed",
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
    "Run",
    "Snooze",
    "Status",
    "SyncRun",
    "TransitionRefused",
    "Tx",
    "Unavailable",
    "UsageError",
    "Verdict",
    "Violation",
    "Worker",
    "aged",
]
