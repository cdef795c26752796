"""Interlock's public contract, typed: pyright strict and mypy --strict accept it and its sample programs. The package is compared with it."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from enum import Enum
from os import PathLike
from types import TracebackType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    Self,
    overload,
)
from typing_extensions import TypeVar

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
TxT = TypeVar("TxT", default="Tx")
R_co = TypeVar("R_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)
_AroundT = TypeVar("_AroundT", bound=Callable[[], AbstractContextManager[Any]])
Seconds = float | timedelta
Doubt = Literal["retry", "hold"]

# ---------------------------------------------------------------- values
class Enqueued:
    id: str
    created: bool
    replaced: bool

class Job:
    id: str
    kind: str
    queue: str
    priority: int
    lifecycle: str
    lifecycle_version: int
    state: str
    phase: Literal["pending", "running", "succeeded", "failed"]
    version: int  # grows by one per transition
    attempt: int
    tries: int
    tries_left: int
    lease_losses: int
    payload: Mapping[str, Any]
    tags: Mapping[str, str]
    trace: Mapping[str, str] | None
    result: Any
    last_error: str | None
    progress: tuple[float, float | None, str] | None
    due_at: datetime
    expires_at: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    scheduled_for: datetime | None
    redrive_of: str | None
    idempotency_key: str | None
    key_freed: bool
    unique_key: str | None
    cancel_requested_at: datetime | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    held_at: datetime | None
    held_reason: str | None
    ended: bool

class Execution:
    exec_id: str
    job_id: str
    attempt: int
    holder: int  # grows with each new owner: (job_id, attempt, holder) is the fence
    kind: str
    status: Literal["LEASED", "IN_PROGRESS", "COMMITTED", "DONE", "ABORTED"]
    state: str
    ended_by: str | None
    lease_owner: str
    lease_expires_at: datetime
    heartbeat_at: datetime
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
    error: str | None
    live: bool

class AuditEntry:
    job_id: str
    seq: int  # its position in the job's history, from 0
    version: int  # the job's version after it
    n: int  # 0 is a transition, above are remarks
    attempt: int | None
    event: str
    from_state: str | None
    to_state: str | None
    actor: str
    reason: str | None
    at: datetime
    detail: Mapping[str, Any] | None

class Backoff:
    def __init__(
        self,
        first: Seconds = ...,
        *,
        factor: float = ...,
        cap: Seconds = ...,
        jitter: bool = ...,
    ) -> None: ...

class Cursor(Protocol):
    """The result of a statement, as the database's driver returns it. A row is a tuple of the driver's values."""

    rowcount: int
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...

class Tx(Protocol):
    """The transaction of the move: a thin connection that takes the database's own SQL."""
    def execute(
        self, sql: str, params: Sequence[object] | Mapping[str, object] = ..., /
    ) -> Cursor: ...

class JobRequest(Generic[R_co]):
    """A kind with its arguments and options, for bulk enqueue and schedules."""

class JobHandle(Generic[R_co]):
    """A stored job: read it, wait for its end or its result, cancel it."""

    id: str
    created: bool
    replaced: bool
    def job(self) -> Job: ...
    def cancel(self, *, by: str, reason: str = ...) -> Job: ...
    def wait(self, *, timeout: Seconds = ...) -> Job: ...
    def result(self, *, timeout: Seconds = ...) -> R_co: ...
    async def ajob(self) -> Job: ...
    async def acancel(self, *, by: str, reason: str = ...) -> Job: ...
    async def await_end(self, *, timeout: Seconds = ...) -> Job: ...
    async def aresult(self, *, timeout: Seconds = ...) -> R_co: ...

class Violation:
    rule: str
    job_id: str
    detail: str

class Report:
    ok: bool
    checked: int
    violations: list[Violation]  # at most a thousand
    left_out: int  # the others

class Explanation:
    sentence: str
    reasons: list[str]

class Status:
    counts: Mapping[str, Mapping[str, int]]  # lifecycle -> state -> jobs
    stuck: list[Execution]  # heartbeat older than T
    orphaned_kinds: list[str]  # waiting or running jobs, no live worker knows the kind
    orphaned_queues: list[
        _Depth
    ]  # due jobs, no live worker serves the kind in this queue
    failures: list[_Failures]  # failed in the last day and not redriven, by kind
    workers: list[_WorkerSeen]
    depths: list[_Depth]
    external: list[_External]  # handed-over work, by kind
    held: list[Job]  # wait for an operator: 100 of each kind and queue
    held_count: int  # the number of all held jobs
    paused: list[LimitSeen]  # queues and kinds of which no job starts
    paused_schedules: list[ScheduleInfo]
    healthy: bool

class _FailedJob:
    id: str
    state: str
    attempt: int
    finished_at: datetime
    error: str | None

class _Failures:
    kind: str
    count: int
    newest: tuple[_FailedJob, ...]

class _WorkerFacts:
    name: str
    host: str
    pid: int
    state: str
    slots: int
    busy: int
    kinds: tuple[str, ...]
    queues: tuple[str, ...]
    schedules: tuple[str, ...]  # those that its code declares

class _WorkerSeen:
    facts: _WorkerFacts
    started_at: datetime
    heartbeat_at: datetime
    silent: float  # seconds since its last heartbeat
    alive: bool

class _Depth:
    kind: str
    queue: str
    due: int
    later: int
    held: int
    running: int
    oldest: float  # seconds for which the oldest due job has been due

class _External:
    kind: str
    executions: int
    overdue: float  # seconds by which the oldest due check is late
    every: float
    batch: int
    failures: int  # consecutive failed calls to the external system
    error: str | None
    down_since: datetime | None
    late: bool  # by more than two passes over all executions

class RetryDecision:
    """The decision of a kind's error policy about an exception."""

    retryable: bool
    after: float | None
    def __init__(self, retryable: bool, after: float | None = ...) -> None: ...

# ---------------------------------------------------------------- errors
class InterlockError(Exception): ...
class NotFound(InterlockError): ...
class PayloadError(InterlockError): ...
class Refused(InterlockError): ...  # admit refused the job at enqueue: .reason
class TransitionRefused(InterlockError): ...
class LeaseLost(InterlockError): ...
class JobFailed(InterlockError): ...  # result() of a job that did not succeed: .job
class NotMigrated(InterlockError): ...
class InvalidToken(InterlockError): ...  # of a question: this app did not sign it
class KeyReused(InterlockError): ...
class Cancelled(InterlockError): ...
class LifecycleError(InterlockError): ...
class Unavailable(InterlockError): ...  # the database cannot be used now
class UsageError(
    InterlockError, ValueError
): ...  # a call or declaration that can never work
class CommitTimeout(InterlockError, TimeoutError): ...
class NotApplied(
    InterlockError
): ...  # raised by a caller inside an effect: the external system call surely did not happen

# ---------------------------------------------------------------- answers
class Retry(Exception):
    def __init__(self, reason: str = ..., *, after: Seconds | None = ...) -> None: ...

class Snooze(Exception):
    def __init__(
        self, reason: str = ..., *, after: Seconds = ..., until: datetime | None = ...
    ) -> None: ...

class Fail(Exception):
    def __init__(self, reason: str) -> None: ...

class Reject(Exception):
    def __init__(self, reason: str) -> None: ...

class External(Generic[R_co]):
    """Returned by a handler: the work continues in an external system, and its value will be an R."""
    def __init__(self, external_id: str) -> None: ...

class Question(External[R_co]):
    """Returned by a handler: the job waits until a person or another system answers, and its value will be an R."""

    token: str  # the same in every attempt; goes into a link

# What a reconciler answers per execution; an execution that it leaves out is *missing*.
class InProgress(Generic[R_co]):
    def __init__(
        self, done: float | None = ..., total: float | None = ..., note: str = ...
    ) -> None: ...

class Completed(Generic[R_co]):
    def __init__(self, value: R_co) -> None: ...

class Failed(Generic[R_co]):
    def __init__(self, reason: str) -> None: ...

class Gone(Generic[R_co]):
    """Cancelled in the external system."""
    def __init__(self, reason: str = ...) -> None: ...

# ---------------------------------------------------------------- the run of a handler
class _RunFacts:
    job_id: str
    exec_id: str
    attempt: int
    cancelled: bool
    payload: Mapping[str, Any]
    def measure(self, name: str, value: float) -> None: ...
    @overload
    def ask(
        self, *, timeout: Seconds
    ) -> Question[Never]: ...  # a Question of any type; fails if nobody answers
    @overload
    def ask(self, *, timeout: Seconds, default: T) -> Question[T]: ...

class _ResultOf(Protocol[T_co]):
    name: str
    def load_result(self, value: object, /) -> T_co: ...

class _Effect(Protocol):
    key: str
    @overload
    async def __call__(
        self, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...
    @overload
    async def __call__(
        self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...

class _SkipEffect(Protocol):
    key: str
    @overload
    async def __call__(
        self, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T | None: ...
    @overload
    async def __call__(
        self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T | None: ...

class _LookupEffect(Protocol[T]):
    key: str
    async def __call__(
        self, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...

class _SyncEffect(Protocol):
    key: str
    def __call__(
        self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...

class _SyncSkipEffect(Protocol):
    key: str
    def __call__(
        self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T | None: ...

class _Step(Protocol):
    @overload
    async def __call__(
        self, fn: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...
    @overload
    async def __call__(
        self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...

class _SyncStep(Protocol):
    def __call__(
        self, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...

class Run(_RunFacts):
    """For `async def` handlers."""
    def progress(
        self, done: float, total: float | None = ..., note: str = ...
    ) -> Awaitable[None]: ...  # awaited or not
    @overload
    async def step(
        self,
        name: str,
        fn: Callable[Q, Awaitable[T]],
        /,
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> T: ...
    @overload
    async def step(
        self, name: str, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...
    @overload
    def step(self, name: str, /, *, max_age: Seconds) -> _Step: ...
    async def results(self, kind: _ResultOf[T], /) -> list[T]: ...
    async def advance(self, stage: str, /) -> None: ...
    @overload
    def effect(self, name: str, /, *, on_doubt: Doubt) -> _Effect: ...
    @overload
    def effect(self, name: str, /, *, on_doubt: Literal["skip"]) -> _SkipEffect: ...
    @overload
    def effect(
        self, name: str, /, *, on_doubt: Callable[[str], Awaitable[T | None]]
    ) -> _LookupEffect[T]: ...

class SyncRun(_RunFacts):
    """For `def` handlers (threads, processes): the same verbs, without await."""
    def progress(
        self, done: float, total: float | None = ..., note: str = ...
    ) -> None: ...
    @overload
    def step(
        self, name: str, fn: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T: ...
    @overload
    def step(self, name: str, /, *, max_age: Seconds) -> _SyncStep: ...
    def results(self, kind: _ResultOf[T], /) -> list[T]: ...
    def advance(self, stage: str, /) -> None: ...
    @overload
    def effect(self, name: str, /, *, on_doubt: Doubt) -> _SyncEffect: ...
    @overload
    def effect(self, name: str, /, *, on_doubt: Literal["skip"]) -> _SyncSkipEffect: ...

# ---------------------------------------------------------------- a kind of job
class Kind(Generic[P, R, TxT]):
    """A kind of job, made by `@app.job` from a function."""

    name: str
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    def request(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]: ...
    def using(
        self,
        *,
        idempotency_key: str | None = ...,
        unique_key: str | None = ...,
        queue: str | None = ...,
        priority: int | None = ...,
        delay: Seconds | None = ...,
        run_at: datetime | None = ...,
        ttl: Seconds | None = ...,
        tags: Mapping[str, str] | None = ...,
        conn: Any = ...,
        concurrency_key: str | None = ...,
        after: Sequence[JobHandle[Any] | Batch] | None = ...,
        on_failed: Literal["cancel", "run", "hold"] = ...,
        unique_for: Seconds | None = ...,
        on_conflict: Literal["keep", "replace", "debounce"] | None = ...,
    ) -> Kind[P, R, TxT]: ...
    def load_result(self, value: object, /) -> R: ...
    def result(self, id: str, /, *, timeout: Seconds = ...) -> R: ...
    async def aresult(self, id: str, /, *, timeout: Seconds = ...) -> R: ...
    # the plain function, with its own signature
    @overload
    def __call__(self, run: object, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def on_cancel(
        self, fn: Callable[[str], Awaitable[None]], /
    ) -> Callable[[str], Awaitable[None]]: ...
    def complete(
        self, external_id: str, value: R, /
    ) -> bool: ...  # a provider that calls back
    async def acomplete(self, external_id: str, value: R, /) -> bool: ...
    def answer(
        self, token: str, value: R, /, *, by: str = ...
    ) -> bool: ...  # False if it was answered before
    async def aanswer(self, token: str, value: R, /, *, by: str = ...) -> bool: ...
    # the other functions of the job
    def commit(
        self, fn: Callable[[TxT, Job, R], None], /
    ) -> Callable[[TxT, Job, R], None]: ...
    def commit_many(
        self, fn: Callable[[TxT, Sequence[Job], Sequence[R]], None], /
    ) -> Callable[[TxT, Sequence[Job], Sequence[R]], None]: ...
    @overload
    def finish(
        self, fn: Callable[[Run, R], Awaitable[None]], /
    ) -> Callable[[Run, R], Awaitable[None]]: ...
    @overload
    def finish(
        self, fn: Callable[[SyncRun, R], None], /
    ) -> Callable[[SyncRun, R], None]: ...
    def guard(
        self, fn: Callable[Concatenate[Job, P], Awaitable[None] | None], /
    ) -> Callable[Concatenate[Job, P], Awaitable[None] | None]: ...
    @overload
    def admit(
        self, fn: Callable[Concatenate[TxT, Enqueued, P], None], /
    ) -> Callable[Concatenate[TxT, Enqueued, P], None]: ...
    @overload
    def admit(
        self, fn: Callable[Concatenate[TxT, P], None], /
    ) -> Callable[Concatenate[TxT, P], None]: ...
    def on_enter(
        self, state: str, /
    ) -> Callable[[Callable[[TxT, Job], None]], Callable[[TxT, Job], None]]: ...
    def reconcile(
        self,
        *,
        every: Seconds = ...,
        batch: int = ...,
        grace: Seconds = ...,
    ) -> Callable[[_Ask[R]], _Ask[R]]: ...

Answer = InProgress[R] | Completed[R] | Failed[R] | Gone[R]

class _Ask(Protocol[R_co]):
    def __call__(
        self, external_ids: Sequence[str], /
    ) -> Awaitable[
        Mapping[str, InProgress[R_co] | Completed[R_co] | Failed[R_co] | Gone[R_co]]
    ]: ...

# ---------------------------------------------------------------- limits, batches and flows
class Limit:
    max_running: int | None
    rate: str | None
    burst: int | None
    def __init__(
        self,
        max_running: int | None = ...,
        rate: str | None = ...,
        burst: int | None = ...,
    ) -> None: ...

class LimitSeen:
    scope: Literal["queue", "kind", "key"]
    name: str
    limit: Limit
    declared: Limit | None
    changed_by: str | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    running: int
    next_start: float  # seconds

class Operation:
    id: str
    at: datetime
    scope: str
    name: str
    event: str
    actor: str
    reason: str | None
    detail: Mapping[str, Any] | None

class ScheduleInfo:
    name: str
    kind: str
    cron: str
    tz: str
    catch_up: Literal["last", "none", "all"]
    payload: Mapping[str, Any]
    options: Mapping[str, Any]  # as `kind.using` takes them
    source: Literal["code", "run time"]
    changed_by: str | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    last_tick: datetime | None
    next_tick: datetime | None  # None during a pause
    workers: int  # how many live workers run it

class Schedules:
    def all(self) -> list[ScheduleInfo]: ...
    def __iter__(self) -> Iterator[ScheduleInfo]: ...
    def get(self, name: str, /) -> ScheduleInfo: ...
    def create(
        self,
        name: str,
        cron: str,
        request: JobRequest[object],
        /,
        *,
        tz: str = ...,
        catch_up: Literal["last", "none", "all"] = ...,
        by: str,
        reason: str = ...,
    ) -> None: ...
    def change(
        self,
        name: str,
        /,
        *,
        cron: str | None = ...,
        request: JobRequest[object] | None = ...,
        tz: str | None = ...,
        catch_up: Literal["last", "none", "all"] | None = ...,
        by: str,
        reason: str = ...,
    ) -> None: ...  # stays until the next change or reset
    def pause(self, name: str, /, *, by: str, reason: str = ...) -> bool: ...
    def resume(
        self, name: str, /, *, by: str, reason: str = ...
    ) -> bool: ...  # the ticks of the pause are skipped
    def reset(
        self, name: str, /, *, by: str, reason: str = ...
    ) -> bool: ...  # back to what the code declares
    def delete(self, name: str, /, *, by: str, reason: str = ...) -> None: ...
    def run_now(
        self, name: str, /, *, by: str, reason: str = ...
    ) -> JobHandle[object]: ...
    async def aall(self) -> list[ScheduleInfo]: ...
    async def aget(self, name: str, /) -> ScheduleInfo: ...
    async def acreate(
        self,
        name: str,
        cron: str,
        request: JobRequest[object],
        /,
        *,
        tz: str = ...,
        catch_up: Literal["last", "none", "all"] = ...,
        by: str,
        reason: str = ...,
    ) -> None: ...
    async def achange(
        self,
        name: str,
        /,
        *,
        cron: str | None = ...,
        request: JobRequest[object] | None = ...,
        tz: str | None = ...,
        catch_up: Literal["last", "none", "all"] | None = ...,
        by: str,
        reason: str = ...,
    ) -> None: ...
    async def apause(self, name: str, /, *, by: str, reason: str = ...) -> bool: ...
    async def aresume(self, name: str, /, *, by: str, reason: str = ...) -> bool: ...
    async def areset(self, name: str, /, *, by: str, reason: str = ...) -> bool: ...
    async def adelete(self, name: str, /, *, by: str, reason: str = ...) -> None: ...
    async def arun_now(
        self, name: str, /, *, by: str, reason: str = ...
    ) -> JobHandle[object]: ...

class _Unchanged(Enum):
    UNCHANGED = "unchanged"

class _QueueControls:
    scope: Literal["queue", "kind", "key"]
    name: str
    def limit(
        self,
        *,
        max_running: int | _Unchanged | None = ...,
        rate: str | _Unchanged | None = ...,
        burst: int | None = ...,
        by: str = ...,
        reason: str = ...,
    ) -> None: ...
    def reset_limits(self, *, by: str = ..., reason: str = ...) -> bool: ...
    def pause(self, *, by: str, reason: str = ...) -> bool: ...
    def resume(self, *, by: str, reason: str = ...) -> bool: ...

class _KindControls(_QueueControls):
    def limit_per_key(
        self,
        *,
        max_running: int | _Unchanged | None = ...,
        rate: str | _Unchanged | None = ...,
        burst: int | None = ...,
        by: str = ...,
        reason: str = ...,
    ) -> None: ...

class BatchProgress:
    id: str
    name: str
    parent: str | None
    created_at: datetime
    created_by: str
    blocked: int
    waiting: int
    running: int
    succeeded: int
    failed: int
    total: int
    ended: bool

class Batch:
    """A named set of jobs, which other jobs can wait for."""

    id: str
    name: str
    def progress(self) -> BatchProgress: ...
    def jobs(
        self, *, phase: str | None = ..., limit: int = ..., after: str | None = ...
    ) -> list[Job]: ...
    def wait(self, *, timeout: Seconds = ...) -> BatchProgress: ...
    async def await_end(self, *, timeout: Seconds = ...) -> BatchProgress: ...
    async def aprogress(self) -> BatchProgress: ...
    async def ajobs(
        self, *, phase: str | None = ..., limit: int = ..., after: str | None = ...
    ) -> list[Job]: ...

class Flow(Batch):
    """A graph of jobs, stored at the end of its `with` block."""
    def add(
        self,
        request: JobRequest[R],
        /,
        *,
        after: Sequence[JobHandle[Any] | Batch] = ...,
        on_failed: Literal["cancel", "run", "hold"] = ...,
    ) -> JobHandle[R]: ...
    def batch(
        self,
        name: str,
        requests: Iterable[JobRequest[Any]],
        /,
        *,
        after: Sequence[JobHandle[Any] | Batch] = ...,
        on_failed: Literal["cancel", "run", "hold"] = ...,
    ) -> Batch: ...
    def store(self) -> None: ...
    async def astore(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class _NeedsSyncRun: ...

class _JobDecorator(Protocol[TxT]):
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Run, P], Awaitable[External[R]]], /
    ) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Run, P], Awaitable[External[R] | R]], /
    ) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[SyncRun, P], External[R]], /
    ) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[SyncRun, P], External[R] | R], /
    ) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Run, P], object], /
    ) -> _NeedsSyncRun: ...  # a `def` handler takes a SyncRun
    @overload
    def __call__(
        self, fn: Callable[P, Awaitable[External[R]]], /
    ) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(
        self, fn: Callable[P, Awaitable[External[R] | R]], /
    ) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(self, fn: Callable[P, External[R]], /) -> Kind[P, R, TxT]: ...
    @overload
    def __call__(self, fn: Callable[P, External[R] | R], /) -> Kind[P, R, TxT]: ...

class Lifecycle:
    name: str
    def __init__(
        self,
        name: str,
        /,
        *,
        transitions: Iterable[tuple[str, str, str]],
        initial: str | None = ...,
    ) -> None: ...
    @classmethod
    def parse(cls, name: str, text: str) -> Lifecycle: ...
    @classmethod
    def load(cls, path: str | PathLike[str], name: str | None = ...) -> Lifecycle: ...
    @classmethod
    def builtin(cls, name: str) -> Lifecycle: ...

class _JobCount:
    kind: str
    state: str
    jobs: int
    redriven: int  # of these, how many were redriven before

class _BulkError:
    job_id: str
    error: str

class BulkResult:
    counts: tuple[_JobCount, ...]  # the jobs that matched at first, by kind and state
    matched: int
    changed: int
    asked_to_stop: int  # of the changed ones
    skipped: dict[str, int]  # by the reason
    failed: int
    errors: list[_BulkError]  # the first ten
    done: int

class Bulk:
    def cancel(
        self,
        *,
        by: str,
        reason: str = ...,
        kind: str | None = ...,
        state: str | None = ...,
        phase: str | None = ...,
        queue: str | None = ...,
        tags: Mapping[str, str] | None = ...,
        since: datetime | None = ...,
        until: datetime | None = ...,
        error_like: str | None = ...,
        dry_run: bool = ...,
        on_batch: Callable[[BulkResult], object] | None = ...,
    ) -> BulkResult: ...
    def reject(
        self,
        *,
        by: str,
        reason: str,
        kind: str | None = ...,
        state: str | None = ...,
        phase: str | None = ...,
        queue: str | None = ...,
        tags: Mapping[str, str] | None = ...,
        since: datetime | None = ...,
        until: datetime | None = ...,
        error_like: str | None = ...,
        dry_run: bool = ...,
        on_batch: Callable[[BulkResult], object] | None = ...,
    ) -> BulkResult: ...
    def redrive(
        self,
        *,
        by: str,
        reason: str = ...,
        fresh: bool = ...,
        again: bool = ...,
        kind: str | None = ...,
        state: str | None = ...,
        phase: str | None = ...,
        queue: str | None = ...,
        tags: Mapping[str, str] | None = ...,
        since: datetime | None = ...,
        until: datetime | None = ...,
        error_like: str | None = ...,
        dry_run: bool = ...,
        on_batch: Callable[[BulkResult], object] | None = ...,
    ) -> BulkResult: ...
    def delete(
        self,
        *,
        by: str,
        reason: str = ...,
        kind: str | None = ...,
        state: str | None = ...,
        phase: str | None = ...,
        queue: str | None = ...,
        tags: Mapping[str, str] | None = ...,
        since: datetime | None = ...,
        until: datetime | None = ...,
        error_like: str | None = ...,
        dry_run: bool = ...,
        on_batch: Callable[[BulkResult], object] | None = ...,
    ) -> BulkResult: ...
    async def acancel(
        self,
        *,
        by: str,
        reason: str = ...,
        kind: str | None = ...,
        state: str | None = ...,
        phase: str | None = ...,
        queue: str | None = ...,
        tags: Mapping[str, str] | None = ...,
        since: datetime | None = ...,
        until: datetime | None = ...,
        error_like: str | None = ...,
        dry_run: bool = ...,
        on_batch: Callable[[BulkResult], object] | None = ...,
    ) -> BulkResult: ...
    async def areject(
        self,
        *,
        by: str,
        reason: str,
        kind: str | None = ...,
        state: str | None = ...,
        phase: str | None = ...,
        queue: str | None = ...,
        tags: Mapping[str, str] | None = ...,
        since: datetime | None = ...,
        until: datetime | None = ...,
        error_like: str | None = ...,
        dry_run: bool = ...,
        on_batch: Callable[[BulkResult], object] | None = ...,
    ) -> BulkResult: ...
    async def aredrive(
        self,
        *,
        by: str,
        reason: str = ...,
        fresh: bool = ...,
        again: bool = ...,
        kind: str | None = ...,
        state: str | None = ...,
        phase: str | None = ...,
        queue: str | None = ...,
        tags: Mapping[str, str] | None = ...,
        since: datetime | None = ...,
        until: datetime | None = ...,
        error_like: str | None = ...,
        dry_run: bool = ...,
        on_batch: Callable[[BulkResult], object] | None = ...,
    ) -> BulkResult: ...
    async def adelete(
        self,
        *,
        by: str,
        reason: str = ...,
        kind: str | None = ...,
        state: str | None = ...,
        phase: str | None = ...,
        queue: str | None = ...,
        tags: Mapping[str, str] | None = ...,
        since: datetime | None = ...,
        until: datetime | None = ...,
        error_like: str | None = ...,
        dry_run: bool = ...,
        on_batch: Callable[[BulkResult], object] | None = ...,
    ) -> BulkResult: ...

class Worker:
    name: str
    state: str  # where its loop is
    busy: int
    def stop(self, exit_code: int = ..., *, drain: float | None = ...) -> None: ...

class App(Generic[TxT]):
    bulk: Bulk  # many jobs at once
    schedules: Schedules  # at run time
    @overload
    def __init__(
        self: App[Tx],
        url: str | None = ...,
        *,
        imports: Sequence[str] = ...,
        schema: str = ...,
        lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = ...,
        retention: Mapping[Literal["succeeded", "failed", "audit"], Seconds | None]
        | None = ...,
        archive: Callable[[Sequence[AuditEntry]], None] | None = ...,
        queues: Mapping[str, Limit] | None = ...,
        secret: str | Sequence[str] | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        url: str | None = ...,
        *,
        transaction: Callable[[], AbstractContextManager[TxT]],
        imports: Sequence[str] = ...,
        schema: str = ...,
        lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = ...,
        retention: Mapping[Literal["succeeded", "failed", "audit"], Seconds | None]
        | None = ...,
        archive: Callable[[Sequence[AuditEntry]], None] | None = ...,
        queues: Mapping[str, Limit] | None = ...,
        secret: str | Sequence[str] | None = ...,
    ) -> None: ...
    @overload
    def job(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Run, P], Awaitable[External[R]]], /
    ) -> Kind[P, R, TxT]: ...
    @overload
    def job(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Run, P], Awaitable[External[R] | R]], /
    ) -> Kind[P, R, TxT]: ...
    @overload
    def job(
        self, fn: Callable[Concatenate[SyncRun, P], External[R]], /
    ) -> Kind[P, R, TxT]: ...
    @overload
    def job(
        self, fn: Callable[Concatenate[SyncRun, P], External[R] | R], /
    ) -> Kind[P, R, TxT]: ...
    @overload
    def job(
        self, fn: Callable[Concatenate[Run, P], object], /
    ) -> _NeedsSyncRun: ...  # a `def` handler takes a SyncRun
    @overload
    def job(self, fn: Callable[P, Awaitable[External[R]]], /) -> Kind[P, R, TxT]: ...
    @overload
    def job(
        self, fn: Callable[P, Awaitable[External[R] | R]], /
    ) -> Kind[P, R, TxT]: ...
    @overload
    def job(self, fn: Callable[P, External[R]], /) -> Kind[P, R, TxT]: ...
    @overload
    def job(self, fn: Callable[P, External[R] | R], /) -> Kind[P, R, TxT]: ...
    @overload
    def job(
        self,
        /,
        *,
        kind: str | None = ...,
        lifecycle: Lifecycle | str | None = ...,
        tries: int = ...,
        lease: Seconds = ...,
        queue: str = ...,
        max_runtime: Seconds | None = ...,
        process: bool = ...,
        backoff: Backoff = ...,
        on_lost_lease: Literal["rerun", "fail", "hold"] = ...,
        key_until: Sequence[str] = ...,
        commit_timeout: Seconds | None = ...,
        commit_batch: int = ...,
        error_policy: Callable[[Exception], RetryDecision | None] | None = ...,
        max_running: int | None = ...,  # over all workers
        rate: str | None = ...,  # starts, such as "10/s" or "1000/h"
        burst: int | None = ...,
        max_running_per_key: int | None = ...,
        rate_per_key: str | None = ...,
        burst_per_key: int | None = ...,
    ) -> _JobDecorator[TxT]: ...
    def around_attempt(
        self, fn: _AroundT, /
    ) -> (
        _AroundT
    ): ...  # fn() makes a context manager; entered where the job's functions run
    def schedule(
        self,
        name: str,
        cron: str,
        request: JobRequest[object],
        /,
        *,
        tz: str = ...,
        catch_up: Literal["last", "none", "all"] = ...,
    ) -> None: ...
    def webhook(
        self,
        name: str,
        url: str,
        /,
        *,
        secret: str,
        kinds: Sequence[str] | None = ...,
        allow_private: bool = ...,
    ) -> None: ...
    def enqueue_many(
        self, requests: Iterable[JobRequest[R]], /, *, conn: Any = ...
    ) -> list[JobHandle[R]]: ...
    def flow(self, name: str, /, *, conn: Any = ...) -> Flow: ...
    def batch(self, id: str, /) -> Batch: ...
    def batches(
        self, *, parent: str | None = ..., limit: int = ..., after: str | None = ...
    ) -> list[Batch]: ...  # flows, or the batches of one; the newest first
    def queue(self, name: str, /) -> _QueueControls: ...
    def kind(self, name: str, /) -> _KindControls: ...
    def limits(self) -> list[LimitSeen]: ...
    def operations(
        self,
        *,
        scope: str | None = ...,
        name: str | None = ...,
        limit: int = ...,
        after: str | None = ...,
    ) -> list[Operation]: ...  # what was changed about queues, kinds and schedules
    async def abatch(self, id: str, /) -> Batch: ...
    async def abatches(
        self, *, parent: str | None = ..., limit: int = ..., after: str | None = ...
    ) -> list[Batch]: ...
    async def alimits(self) -> list[LimitSeen]: ...
    async def aoperations(
        self,
        *,
        scope: str | None = ...,
        name: str | None = ...,
        limit: int = ...,
        after: str | None = ...,
    ) -> list[Operation]: ...
    def transaction(
        self,
    ) -> AbstractContextManager[Tx]: ...  # ours, for those who have none: conn=tx
    def verify(self) -> Report: ...
    def explain(self, id: str, /) -> Explanation: ...
    def jobs(
        self,
        *,
        kind: str | None = ...,
        state: str | None = ...,
        phase: str | None = ...,
        queue: str | None = ...,
        tags: Mapping[str, str] | None = ...,
        since: datetime | None = ...,
        until: datetime | None = ...,
        error_like: str | None = ...,
        limit: int = ...,
        after: str | None = ...,
    ) -> list[Job]: ...
    def release(
        self,
        id: str,
        /,
        *,
        by: str,
        reason: str,
        effect: Literal["happened", "did_not"] | None = ...,
        receipt: Any = ...,
    ) -> Job: ...  # ends a hold
    def close(self) -> None: ...
    def get(self, id: str, /) -> Job: ...
    def executions(self, id: str, /) -> list[Execution]: ...
    def history(self, id: str, /) -> list[AuditEntry]: ...
    def cancel(
        self, id: str, /, *, by: str, reason: str = ...
    ) -> Job: ...  # .phase says whether it ended or was asked
    def reject(
        self, id: str, /, *, by: str, reason: str
    ) -> Job: ...  # a waiting job, if the lifecycle allows it
    def redrive(
        self, id: str, /, *, by: str, reason: str = ..., fresh: bool = ...
    ) -> JobHandle[object]: ...
    def answer(self, token: str, value: object, /, *, by: str = ...) -> bool: ...
    def answer_job(
        self, id: str, value: object, /, *, by: str, reason: str = ...
    ) -> Job: ...  # by an operator, without a token
    def delete(
        self, id: str, /, *, by: str, reason: str = ...
    ) -> Job: ...  # one that has ended, as it was
    def status(self) -> Status: ...
    def enqueue_named(
        self, kind: str, payload: Mapping[str, Any], /
    ) -> JobHandle[object]: ...  # for producers that cannot import the handler
    def migrate(self) -> None: ...
    def run_until_idle(self, *, timeout: Seconds = ...) -> int: ...
    # every verb that touches the database has an `a` twin over one thread step
    async def aenqueue_many(
        self, requests: Iterable[JobRequest[R]], /, *, conn: Any = ...
    ) -> list[JobHandle[R]]: ...
    async def aenqueue_named(
        self, kind: str, payload: Mapping[str, Any], /
    ) -> JobHandle[object]: ...
    async def averify(self) -> Report: ...
    async def ajobs(
        self,
        *,
        kind: str | None = ...,
        state: str | None = ...,
        phase: str | None = ...,
        queue: str | None = ...,
        tags: Mapping[str, str] | None = ...,
        since: datetime | None = ...,
        until: datetime | None = ...,
        error_like: str | None = ...,
        limit: int = ...,
        after: str | None = ...,
    ) -> list[Job]: ...
    async def aget(self, id: str, /) -> Job: ...
    async def aexecutions(self, id: str, /) -> list[Execution]: ...
    async def ahistory(self, id: str, /) -> list[AuditEntry]: ...
    async def acancel(self, id: str, /, *, by: str, reason: str = ...) -> Job: ...
    async def areject(self, id: str, /, *, by: str, reason: str) -> Job: ...
    async def arelease(
        self,
        id: str,
        /,
        *,
        by: str,
        reason: str,
        effect: Literal["happened", "did_not"] | None = ...,
        receipt: Any = ...,
    ) -> Job: ...
    async def aredrive(
        self, id: str, /, *, by: str, reason: str = ..., fresh: bool = ...
    ) -> JobHandle[object]: ...
    async def aanswer(self, token: str, value: object, /, *, by: str = ...) -> bool: ...
    async def aanswer_job(
        self, id: str, value: object, /, *, by: str, reason: str = ...
    ) -> Job: ...
    async def adelete(self, id: str, /, *, by: str, reason: str = ...) -> Job: ...
    async def aexplain(self, id: str, /) -> Explanation: ...
    async def astatus(self) -> Status: ...
    async def amigrate(self) -> None: ...
    async def aclose(self) -> None: ...
    async def arun_until_idle(self, *, timeout: Seconds = ...) -> int: ...
    def worker(
        self,
        *,
        queues: Sequence[str] = ...,
        slots: int = ...,
        child_processes: int | None = ...,
        listen: bool = ...,
        drain: Seconds = ...,
    ) -> AbstractAsyncContextManager[Worker]: ...
    def bound_to(self, url: str, /) -> AbstractContextManager[App[TxT]]: ...
