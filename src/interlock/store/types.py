"""The arguments and results of a store's methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from ..core.job import AuditEntry, Execution, Job, Status
from ..core.lifecycle import Lifecycle
from ..core.machine import Arrow
from ..core.transition import Move
from .flow_types import DeclaredLimit, Dependency

SILENT = 30.0
"""Seconds without a heartbeat after which a worker no longer counts as alive: three intervals of the slowest worker."""

OnConflict = Literal["keep", "replace", "debounce"]
"""What an enqueue does with the waiting job that has its unique key."""


# ---------------------------------------------------------------- arguments
@dataclass(slots=True)
class NewJob:
    """A job to store. `core.payload` has checked every text in it."""

    id: str
    kind: str
    lifecycle: str
    lifecycle_version: int
    state: str
    payload: str
    """Canonical JSON: two payloads are equal exactly if their texts are."""
    tries: int
    queue: str = "default"
    priority: int = 0
    delay: float = 0.0
    run_at: datetime | None = None
    ttl: float | None = None
    idempotency_key: str | None = None
    unique_key: str | None = None
    tags: str | None = None
    trace: str | None = None
    scheduled_for: datetime | None = None
    redrive_of: str | None = None
    root: str | None = None
    """The first job of a chain of redrives, by whose id external systems know the job."""
    inherits: bool = False
    """Whether to copy the receipts of the job that it redrives."""
    resting: tuple[str, ...] = ()
    """States in which a job rests after a failure. A job with the same idempotency key in one of them becomes due."""
    actor: str = "app"
    concurrency_key: str | None = None
    """Jobs of a kind with the same key share the kind's limit per key, which must exist."""
    batch: str | None = None
    after: tuple[Dependency, ...] = ()
    """What the job waits for."""
    awaited: bool = False
    """Whether a job of the same call waits for this one."""
    unique_for: float | None = None
    """For how many seconds after its creation the job keeps its unique key, unless it fails."""
    on_conflict: OnConflict = "keep"
    """What happens to the waiting job that has the unique key. With an idempotency key it is always kept."""

    @property
    def replaces(self) -> bool:
        """Whether the waiting job that has the unique key takes this one's payload."""
        return self.on_conflict != "keep" and self.idempotency_key is None

    @property
    def plain(self) -> bool:
        """Whether the job waits for no other job, and no other job waits for it."""
        return not (self.after or self.awaited) and self.concurrency_key is None and self.batch is None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The id of a stored job, and whether this call created it or found it by its key."""

    id: str
    created: bool
    replaced: bool = False
    """Whether the job was found, and got the payload of this call."""


@dataclass(frozen=True, slots=True)
class ClaimRule:
    """How a worker claims a job of `kind` that waits in `state`: lifecycle version, transitions and new status."""

    kind: str
    lifecycle: str
    version: int
    state: str
    path: tuple[Arrow, ...]
    status: Status
    """LEASED, or IN_PROGRESS if there is neither a guard nor a `start` transition."""
    lease: float

    @property
    def target(self) -> str:
        return self.path[-1].target if self.path else self.state


@dataclass(frozen=True, slots=True)
class Fence:
    """The proof that a worker owns an execution. It stops matching when another worker takes the execution over."""

    job_id: str
    attempt: int
    holder: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat of one execution: its fence, the new lease in seconds, and the handler's progress and usage."""

    fence: Fence
    lease: float
    progress: str | None = None
    usage: str | None = None


@dataclass(frozen=True, slots=True)
class KindFacts:
    """The facts about a kind that the database stores for processes without its code."""

    name: str
    lifecycle: str
    hooks: tuple[str, ...] = ()
    """The states with a hook, which only a process with the kind's code can run."""
    queue: str = "default"
    tries: int = 3
    key_until: tuple[str, ...] = ()
    """The states whose entry frees the idempotency key."""
    admits: bool = False
    """Whether the kind has an `admit` function for new jobs."""
    lifecycle_version: int | None = None
    """The lifecycle version that `migrate` registered the kind with. The store sets it."""
    every: float | None = None
    batch: int | None = None
    """Seconds between two checks of handed-over work, and how many are checked at once; None without a reconciler."""


# ---------------------------------------------------------------- results
@dataclass(slots=True)
class Lease:
    """A claimed or adopted execution: the job as it is now, and its owner."""

    job: Job
    holder: int
    status: Status
    owner: str
    seconds: float
    external_id: str | None = None
    result: str | None = None
    """The committed value, if an adopted execution is past the commit boundary."""
    missing_for: float | None = None
    """For how many seconds the external system has not known the work, by the store's clock; None if it knows it."""
    crashes: int = 0
    """How often the execution has changed owners since its commit."""

    @property
    def fence(self) -> Fence:
        return Fence(self.job.id, self.job.attempt, self.holder)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused move, with the current values of its rows. `attempt` is 0 if the execution does not exist."""

    job_id: str
    attempt: int
    holder: int
    status: Status | None
    ended_by: str | None
    state: str | None
    version: int = 0
    error: str | None = None
    """The database's error, if it could not store this move; the rest of the batch was stored."""
    collided: bool = False
    """Whether another writer's row has the same key. The data is valid, so the job must not fail."""

    def already(self, move: Move) -> bool:
        """Return whether the same holder carried out this move before: the reply was lost, and it was sent again."""
        done = (self.attempt, self.holder, self.status, self.ended_by) == (
            move.attempt,
            move.holder,
            move.to_status,
            move.ended_by,
        )
        # An execution that has ended never changes again, but its job may.
        return done and (self.ended_by is not None or self.state == move.state)


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """The result of a group of commits, as ids of jobs. Every other job of the group must be committed alone."""

    stored: frozenset[str]
    late: frozenset[str]
    """Not stored, because the group took too long. They may join another group."""


@dataclass(slots=True)
class Renewal:
    """The results of heartbeats, by fence."""

    renewed: list[Fence] = field(default_factory=list)
    lost: list[Fence] = field(default_factory=list)
    """Not renewed, because another worker owns the execution or it has ended."""
    busy: list[Fence] = field(default_factory=list)
    """Not renewed, because a transaction has locked the row, or the execution was just handed over: try again."""
    cancels: list[Fence] = field(default_factory=list)
    """Renewed, but the job has a cancel request."""


@dataclass(slots=True)
class JobRecord:
    """The data of one job that `verify` checks, without payload, results, errors and reasons.

    A pruned job has only its audit.
    """

    job_id: str
    job: Job | None
    executions: list[Execution]
    audit: list[AuditEntry]


@dataclass(frozen=True, slots=True)
class Declared:
    """What an app declares, for `migrate`."""

    lifecycles: Sequence[Lifecycle]
    kinds: Sequence[KindFacts]
    limits: Sequence[DeclaredLimit] = ()


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result of a migration: the version of each given lifecycle, and a note for each change."""

    versions: Mapping[str, int]
    notes: tuple[str, ...] = ()


# ---------------------------------------------------------------- receipts
@dataclass(frozen=True, slots=True)
class Receipt:
    """The saved result of a step or an effect. If `applied` is False, the effect began and its result is unknown."""

    name: str
    kind: Literal["step", "effect"]
    attempt: int
    holder: int
    args_hash: str
    value: str | None
    """The result as JSON text."""
    applied: bool
    age: float
    """Seconds since the receipt was written, by the store's clock."""
    decided_by: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """An operator's decision about effects with unknown results: whether they happened, and their value as JSON."""

    happened: bool
    value: str | None = None


# ---------------------------------------------------------------- workers and reports
@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker's report at each heartbeat. `name` ends with an id that is new at each start, so it is unique."""

    name: str
    host: str
    pid: int
    state: str
    slots: int
    busy: int
    kinds: tuple[str, ...]
    queues: tuple[str, ...]
    schedules: tuple[str, ...] = ()
    """The schedules that its code declares."""


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker as it last reported."""

    facts: WorkerFacts
    started_at: datetime
    heartbeat_at: datetime
    silent: float
    """Seconds since the last heartbeat, by the store's clock."""

    @property
    def alive(self) -> bool:
        """Whether the worker has reported in the last `SILENT` seconds."""
        return self.silent < SILENT


@dataclass(frozen=True, slots=True)
class MaintenanceDue:
    """What is due for maintenance, at a time of the store's clock."""

    now: datetime
    leases: bool
    """Whether a lease has ended."""
    jobs: bool
    """Whether the TTL of a waiting job has ended."""
    flow: bool = False
    """Whether dependencies must be resolved, or a waiting job has a cancel request."""
