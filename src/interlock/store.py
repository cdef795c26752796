"""The store contract: what a database must do for Interlock. Each docstring is a law, and the contract tests check it on every store.

A store never decides. It carries out moves that `decide` made, and answers what happened. Four rules hold for every verb:

- It is one transaction: all of it, or nothing.
- A settling verb (`move`, `commit`, `renew`) matches the fence `(job_id, attempt, holder)` in its own WHERE clause. Possession is what it checks, never time.
- After insert, exactly three verbs assign a job's state: `claim`, `move` (with `commit`, which is a move around a function) and `take`.
- `adopt` is the only door to another's execution.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from .job import AuditEntry, Execution, Job, Phase, Status
from .lifecycle import Lifecycle
from .machine import Arrow
from .move import Move, Take


class Tx(Protocol):
    """The transaction of the move: a thin, dialect-true connection."""

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = ..., /) -> Any: ...


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
    """All that is stored of one job, for `verify`. A pruned job leaves only its audit."""

    job_id: str
    job: Job | None
    executions: list[Execution]
    audit: list[AuditEntry]


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration did, a sentence each, and the version every given lifecycle has now."""

    versions: Mapping[str, int]
    notes: tuple[str, ...] = ()


class Store(Protocol):
    """One database that holds jobs."""

    # ------------------------------------------------------------ schema
    def migrate(self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts]) -> Migrated:
        """Bring the schema to this code's version and register the lifecycles and kinds.

        A lifecycle that is registered already, arrow for arrow, keeps its version, whoever registered it and whatever came later; a changed one gets the next.
        What the database accepts is the union of the registered versions. Running it again changes nothing. A database newer than the code is refused.
        """
        ...

    def migration(self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts]) -> str:
        """The SQL that `migrate` would run on an empty database, to read or to run elsewhere."""
        ...

    def version_of(self, lifecycle: Lifecycle) -> int:
        """The registered version of exactly this lifecycle. `NotMigrated`, naming the command, if there is none."""
        ...

    def lifecycle(self, name: str, version: int) -> Lifecycle:
        """A registered lifecycle, also one that only another app's code knows. `NotFound` if there is none."""
        ...

    # ------------------------------------------------------------ jobs come in
    def enqueue(self, jobs: Sequence[NewJob], *, conn: object | None = None, admit: Callable[[Any, NewJob], None] | None = None) -> list[Enqueued]:
        """Store each job in its lifecycle's initial state, or answer with the job that holds its key. Answers stand in the order asked.

        Keys are unique per kind. No rival makes a caller fail: the loser gets the winner's id. Same `idempotency_key` and another payload: `KeyReused`, and
        nothing of the call is stored. A key's holder that rests after a failure is made due at once. One statement per thousand jobs.
        `admit` is called in the same transaction, for each job that is new; if it raises, nothing of the call is stored. With `conn` all of it happens in the
        caller's own transaction, which is never committed, rolled back or kept.
        """
        ...

    # ------------------------------------------------------------ jobs are worked on
    def claim(self, by: str, ways: Sequence[Way], queues: Sequence[str], limit: int) -> list[Lease]:
        """Lease up to `limit` due jobs to `by`: higher priority first, then the longest due. Never more than `limit`, never one twice.

        Of jobs with a TTL the one that ends first comes first. Kinds and queues of equal priority take turns, by their longest due job.

        Only jobs of a kind and in a state that a way names; never one that is held, asked to stop, past its TTL, in a paused queue, or over the limit of its
        kind or queue.
        Each gets its next attempt with holder 1, walks its way's arrows, is pinned to the way's version, and has its arrows in the audit.
        """
        ...

    def move(self, moves: Sequence[Move]) -> list[Refusal]:
        """Carry out each move, or change nothing of it. A refusal does not touch the others; the answer names each one that was refused.

        A job that waits again although it was asked to stop could not be stopped there: its request ends, and it can be claimed.

        A list names each job once. A move that finds its own work done already (`Refusal.already`) is not refused.
        """
        ...

    def commit(self, move: Move | Take, body: Callable[[Any, Job], None], *,
               transaction: Callable[[], AbstractContextManager[Any]] | None = None) -> Refusal | None:
        """Carry out one move with the caller's function inside its transaction: lock the rows, check the fence, call `body(tx, job)`, write.

        Refused: `body` is not called, or what it wrote is rolled back. `body` raises: nothing is changed and the exception goes through.
        `transaction` opens the caller's own transaction on this database, whose handle is then `tx`; otherwise `tx` is a `Tx`.
        """
        ...

    def renew(self, beats: Sequence[Beat]) -> Renewal:
        """Lease the listed executions on, from now; a row that is locked this moment is *busy*, not waited for. What is not listed is not renewed."""
        ...

    def strays(self, by: str, held: Sequence[Fence]) -> list[Fence]:
        """The live executions of this owner that it does not know it holds: to be asked after a claim whose reply was lost."""
        ...

    def adopt(self, by: str, kinds: Sequence[str], lease: float, limit: int, *, external: bool = False) -> list[Lease]:
        """Take over up to `limit` live executions of these kinds whose lease has ended, the longest ended first.

        Owner, lease and `holder + 1` are one conditional write.

        With `external` the handed-over ones whose check is due; without it never those, except past the commit boundary.
        """
        ...

    def take(self, takes: Sequence[Take]) -> list[Refusal]:
        """Carry out each take of a job that still waits at the version it was read at, or change nothing of it."""
        ...

    def request_cancel(self, id: str, *, by: str, reason: str | None) -> bool:
        """Ask a running job to stop: the flag, and a remark. Asking twice is one request.

        False, and nothing changed, if it is not running, or past its commit boundary.
        """
        ...

    def remark(self, job_id: str, *, attempt: int | None, event: str, actor: str, reason: str | None) -> None:
        """Add a line to the job's history that is not an arrow. A job that is gone gets none."""
        ...

    # ------------------------------------------------------------ jobs go
    def prune(self, *, phase: Phase, age: float, limit: int) -> int:
        """Delete up to `limit` jobs that ended in this phase longer than `age` seconds ago, with executions and receipts; their keys end, their audit stays."""
        ...

    def archive(self, *, age: float, write: Callable[[Sequence[AuditEntry]], None], limit: int) -> int:
        """Hand the audit of up to `limit` jobs that are gone, whose last entry is older than `age` seconds, to `write`, then drop exactly those rows."""
        ...

    # ------------------------------------------------------------ reading
    def now(self) -> datetime:
        """The clock that decides about leases here."""
        ...

    def get(self, id: str) -> Job:
        """The job. `NotFound` if there is none."""
        ...

    def jobs(self, *, kind: str | None = None, state: str | None = None, phase: str | None = None, queue: str | None = None,
             tags: Mapping[str, str] | None = None, limit: int = 100, after: str | None = None) -> list[Job]:
        """Jobs that fit every given filter, newest first; `after` is the id of the last one of the page before."""
        ...

    def executions(self, id: str) -> list[Execution]:
        """All executions of a job, by attempt."""
        ...

    def history(self, id: str) -> list[AuditEntry]:
        """The audit of a job, in order, also after the job is pruned."""
        ...

    def counts(self) -> dict[str, dict[str, int]]:
        """Jobs per lifecycle and state."""
        ...

    def expired(self, kinds: Sequence[str], limit: int) -> list[Job]:
        """Waiting jobs of these kinds whose TTL has ended, the longest ended first."""
        ...

    def kind(self, name: str) -> KindFacts | None:
        """What `migrate` last wrote down of this kind; None if nobody has declared it here."""
        ...

    def dossiers(self, size: int = 1000) -> Iterator[list[Dossier]]:
        """Everything, in pages of at most `size` jobs, each page one snapshot and none a long transaction."""
        ...

    # ------------------------------------------------------------ its own life
    def transaction(self) -> AbstractContextManager[Tx]:
        """A transaction on this database, committed at the end of the block and rolled back if it raises; good as `conn` for `enqueue`."""
        ...

    def close(self) -> None:
        """Give back every connection. The next verb opens new ones."""
        ...
