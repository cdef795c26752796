"""The values that go into a store and come out of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from .job import AuditEntry, Execution, Job, Status
from .machine import Arrow
from .move import Move

SILENT = 30.0
"""Seconds without a beat after which a worker no longer counts as alive: three beats of the slowest worker."""


# ---------------------------------------------------------------- what goes in
@dataclass(slots=True)
class NewJob:
    """A job about to be stored; every text in it has passed the codec."""

    id: str
    kind: str
    lifecycle: str
    lifecycle_version: int
    state: str
    payload: str
    """Canonical JSON: two payloads are the same exactly if their texts are."""
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
    """The first job of a chain of redrives: what outside calls know the job by."""
    inherits: bool = False
    """Whether it takes over a copy of the receipts of the job that it redrives."""
    resting: tuple[str, ...] = ()
    """States in which a holder of the same idempotency key is made due at once."""
    actor: str = "app"


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A stored job's id, and whether this call stored it or found it."""

    id: str
    created: bool


@dataclass(frozen=True, slots=True)
class Way:
    """How a claimer takes a job of `kind` that waits in `state`: under which version, along which arrows, into which status."""

    kind: str
    lifecycle: str
    version: int
    state: str
    path: tuple[Arrow, ...]
    status: Status
    """LEASED, or IN_PROGRESS where there is neither a guard nor a drawn `start`."""
    lease: float

    @property
    def target(self) -> str:
        return self.path[-1].target if self.path else self.state


@dataclass(frozen=True, slots=True)
class Fence:
    """Possession of an execution."""

    job_id: str
    attempt: int
    holder: int


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life for one execution: its fence, how long to lease it on, and what the handler has to show meanwhile."""

    fence: Fence
    lease: float
    progress: str | None = None
    usage: str | None = None


@dataclass(frozen=True, slots=True)
class KindFacts:
    """What the database keeps of a kind, for processes that do not have its code."""

    name: str
    lifecycle: str
    hooks: tuple[str, ...] = ()
    """The states whose entry runs a function that only the kind's own code has."""
    queue: str = "default"
    tries: int = 3
    key_until: tuple[str, ...] = ()
    """The states whose entry releases the idempotency key."""
    admits: bool = False
    """A function of the kind's own code judges every new job."""
    lifecycle_version: int | None = None
    """The version that its code was migrated with; the store answers it."""
    every: float | None = None
    batch: int | None = None
    """How often, and how many at once, its handed-over work is asked about outside; None where none is ever handed over."""


# ---------------------------------------------------------------- what comes out
@dataclass(slots=True)
class Lease:
    """A claimed or adopted execution: the job as it is now, and the fence that moves it."""

    job: Job
    holder: int
    status: Status
    owner: str
    seconds: float
    external_id: str | None = None
    result: str | None = None
    """The committed value, where an adopted execution has passed the commit boundary."""
    missing_for: float | None = None
    """Seconds for which the outside has not known of it, by the store's clock; None if it does."""
    crashes: int = 0
    """How often it has changed hands since its commit."""

    @property
    def fence(self) -> Fence:
        return Fence(self.job.id, self.job.attempt, self.holder)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A move that changed nothing, with what stands in its place. `attempt` 0 means that there is no such execution."""

    job_id: str
    attempt: int
    holder: int
    status: Status | None
    ended_by: str | None
    state: str | None
    version: int = 0
    error: str | None = None
    """Why the database could not store it: a row that stood alone when its batch was halved."""
    collided: bool = False
    """Whether another writer's row had the same key. The data is good, so the job must not fail."""

    def already(self, move: Move) -> bool:
        """An ambiguous reply sent again: the row is what the move asked for, by the same holder."""
        done = (self.attempt, self.holder, self.status, self.ended_by) == (move.attempt, move.holder, move.to_status, move.ended_by)
        # What has ended stays ended, whatever became of the job since.
        return done and (self.ended_by is not None or self.state == move.state)


@dataclass(slots=True)
class Renewal:
    """What became of the beats, by fence."""

    renewed: list[Fence] = field(default_factory=list)
    lost: list[Fence] = field(default_factory=list)
    """Another holds it, or it has ended."""
    busy: list[Fence] = field(default_factory=list)
    """Locked this moment by our own report or commit: ask again."""
    cancels: list[Fence] = field(default_factory=list)
    """Renewed, and asked to stop."""


@dataclass(slots=True)
class Dossier:
    """The data of one job that `verify` checks, without payload, results, errors and reasons.

    A pruned job has only its audit.
    """

    job_id: str
    job: Job | None
    executions: list[Execution]
    audit: list[AuditEntry]


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration did, a sentence each, and the version every given lifecycle has now."""

    versions: Mapping[str, int]
    notes: tuple[str, ...] = ()


# ---------------------------------------------------------------- receipts
@dataclass(frozen=True, slots=True)
class Receipt:
    """What is remembered of a step, or of an outside call. `applied` False: it was asked for, and nobody knows what became of it."""

    name: str
    kind: Literal["step", "effect"]
    attempt: int
    holder: int
    args_hash: str
    value: str | None
    """As JSON text."""
    applied: bool
    age: float
    """Seconds since it was written, by the store's clock."""
    decided_by: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator found out about a doubtful outside call: whether it happened, and if so its value, as JSON text."""

    happened: bool
    value: str | None = None


# ---------------------------------------------------------------- who works, and when
@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker says of itself at every beat. `name` is unique: it ends with the id of its boot."""

    name: str
    host: str
    pid: int
    state: str
    slots: int
    busy: int
    kinds: tuple[str, ...]
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker as the database last heard of it."""

    facts: WorkerFacts
    started_at: datetime
    beat_at: datetime
    silent: float
    """Seconds since its last beat, by the store's clock."""

    @property
    def alive(self) -> bool:
        """Whether it was heard of lately."""
        return self.silent < SILENT


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """What the database keeps of a schedule."""

    name: str
    kind: str
    cron: str
    tz: str
    catch_up: str
    payload: str


@dataclass(frozen=True, slots=True)
class Outside:
    """How a kind's handed-over work stands, and how its reconcilers fare."""

    kind: str
    handed: int
    """Executions that rest outside, or are just being asked about."""
    overdue: float
    """Seconds by which the longest due check is late; zero if none is."""
    every: float
    batch: int
    failures: int = 0
    """How often in a row the outside could not be asked."""
    error: str | None = None
    down_since: datetime | None = None

    @property
    def late(self) -> bool:
        """Whether someone has waited for more than two passes over all: nobody asks, or too few do."""
        return self.overdue > 2 * self.every * max(-(-self.handed // self.batch), 1)


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job that failed for good, without its payload."""

    id: str
    state: str
    attempt: int
    finished_at: datetime
    error: str | None


@dataclass(frozen=True, slots=True)
class Failures:
    """The jobs of a kind that failed recently and that no operator has redriven."""

    kind: str
    count: int
    newest: tuple[FailedJob, ...]
    """A few of them, the newest first."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How much of a kind waits in a queue, and how much of it runs."""

    kind: str
    queue: str
    due: int
    """Waiting, and a claim could take them now."""
    later: int
    """Waiting for their time."""
    held: int
    running: int
    oldest: float
    """Seconds for which the longest due one has been due; zero if none is."""
