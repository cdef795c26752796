"""Interlock: a durable job engine. A job's lifecycle is a declared state machine, and the database enforces it."""

from .app import App
from .core.backoff import Backoff
from .core.error_policy import RetryDecision
from .core.job import AuditEntry, Execution, Job
from .core.lifecycle import Lifecycle
from .core.limits import Limit
from .errors import (
    Cancelled,
    CommitTimeout,
    InterlockError,
    InvalidToken,
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
from .jobs.batch import Batch
from .jobs.flow import Flow
from .jobs.handle import JobHandle
from .jobs.kind import Kind
from .jobs.question import Question
from .jobs.request import JobRequest
from .jobs.results import Answer, Completed, External, Fail, Failed, Gone, InProgress, Reject, Retry, Snooze
from .jobs.run import Run, SyncRun
from .operate.bulk import Bulk
from .operate.bulk_result import BulkResult
from .operate.explain import Explanation
from .operate.schedule_info import ScheduleInfo
from .operate.schedules import Schedules
from .operate.status import Status
from .operate.verify import Report, Violation
from .store.contract import Cursor, Tx
from .store.flow_types import BatchProgress, LimitSeen, Operation
from .store.types import Enqueued
from .worker.worker import Worker

__all__ = [
    "Answer",
    "App",
    "AuditEntry",
    "Backoff",
    "Batch",
    "BatchProgress",
    "Bulk",
    "BulkResult",
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
    "Flow",
    "Gone",
    "InProgress",
    "InterlockError",
    "InvalidToken",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobRequest",
    "KeyReused",
    "Kind",
    "LeaseLost",
    "Lifecycle",
    "LifecycleError",
    "Limit",
    "LimitSeen",
    "NotApplied",
    "NotFound",
    "NotMigrated",
    "Operation",
    "PayloadError",
    "Question",
    "Refused",
    "Reject",
    "Report",
    "Retry",
    "RetryDecision",
    "Run",
    "ScheduleInfo",
    "Schedules",
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
