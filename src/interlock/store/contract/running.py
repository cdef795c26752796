"""The store contract: what a database must do for Interlock. Each docstring is a law, and the contract tests check it on every store.

A store never decides. It carries out moves that `decide` made, and answers what happened. Four rules hold for every verb:

- It is one transaction: all of it, or nothing.
- A settling verb (`move`, `commit`, `renew`) matches the fence `(job_id, attempt, holder)` in its own WHERE clause. Possession is what it checks, never time.
- After insert, exactly three verbs assign a job's state: `claim`, `move` (with `commit`, which is a move around a function) and `take`.
- `adopt` is the only door to another's execution.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from .job import AuditEntry, Execution, Job, Phase
from .lifecycle import Lifecycle
from .move import Move, Take
from .records import (
    Beat,
    Decision,
    Depth,
    Dossier,
    Enqueued,
    Failures,
    Fence,
    KindFacts,
    Lease,
    Migrated,
    NewJob,
    Outside,
    Receipt,
    Refusal,
    Renewal,
    ScheduleFacts,
    Way,
    WorkerFacts,
    WorkerSeen,
)


class Tx(Protocol):
    """The transaction of the move: a thin, dialect-true connection."""

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] = ..., /) -> Any: ...


class Listening(Protocol):
    """An ear at the database's door."""

    def close(self) -> None:
        """No more calls come after this."""
        ...


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
    def claim(self, by: str, ways: Sequence[Way], queues: Sequence[str], limit: int, *, suspects: int | None = None,
              alone: bool = True) -> list[Lease]:
        """Lease up to `limit` due jobs to `by`: higher priority first, then the longest due. Never more than `limit`, never one twice.

        At most `suspects` of them, if given, are suspects: `Job.lease_losses` is above zero. Unless `alone`, no suspect
        has lost two leases or is on its last try, since such a job must run alone.
        Of jobs with a TTL the one that ends first comes first. Kinds and queues of equal priority take turns, by their longest due job.

        Only jobs of a kind and in a state that a way names; never one that is held, asked to stop, past its TTL, in a paused queue, or over the limit of its
        kind or queue.
        Each gets its next attempt with holder 1, walks its way's arrows, is pinned to the way's version, and has its arrows in the audit.
        """
        ...

    def move(self, moves: Sequence[Move]) -> list[Refusal]:
        """Carry out each move, or change nothing of it. A refusal does not touch the others; the answer names each one that was refused.

        A job that waits again although it was asked to stop could not be stopped there: its request ends, and it can be claimed. Who decided so must have
        heard of the request (`Move.heard`): otherwise the move is refused, and is to be decided again.

        A list names each job once. A move that finds its own work done already (`Refusal.already`) is not refused.
        """
        ...

    def commit(self, move: Move | Take, body: Callable[[Any, Job], None], *,
               transaction: Callable[[], AbstractContextManager[Any]] | None = None, timeout: float = 60.0) -> Refusal | None:
        """Carry out one move with the caller's function inside its transaction: lock the rows, check the fence, call `body(tx, job)`, write.

        Refused: `body` is not called, or what it wrote is rolled back. `body` raises: nothing is changed and the exception goes through.
        `transaction` opens the caller's own transaction on this database, whose handle is then `tx`; otherwise `tx` is a `Tx`.
        A body that takes longer than `timeout` seconds is rolled back with `CommitTimeout`; one whose process stands still is ended by the server.
        """
        ...

    def renew(self, beats: Sequence[Beat]) -> Renewal:
        """Lease the listed executions on, from now; a row that is locked this moment is *busy*, not waited for. What is not listed is not renewed."""
        ...

    def due_in(self, ways: Sequence[Way], queues: Sequence[str]) -> float | None:
        """Seconds until a claim could take something: zero if it could now, None if nothing waits. Only reads, and is no promise: others claim too."""
        ...

    def strays(self, by: str, held: Sequence[Fence]) -> list[Fence]:
        """The live executions of this owner that it does not know it holds: to be asked after a claim whose reply was lost."""
        ...

    def adopt(self, by: str, kinds: Sequence[str], lease: float, limit: int, *, external: bool = False,
              committed: Sequence[str] | None = None) -> list[Lease]:
        """Take over up to `limit` live executions of these kinds whose lease has ended, the longest ended first.

        Owner, lease and `holder + 1` are one conditional write. A lease says for how long the outside has not known of its work, and how often
        what is past its commit has changed hands since.

        With `external` the handed-over ones whose check is due; without it never those, except past the commit
        boundary. If `committed` is given, executions past the commit boundary are taken only of these kinds.
        """
        ...

    def recall(self, by: str, kinds: Sequence[str], lease: float, limit: int, *, external_id: str | None = None) -> list[Lease]:
        """Take over handed-over executions before their check is due: those asked to stop in a state that draws `cancel`, the longest asked first, or those
        that the outside knows as `external_id`.

        One conditional write, as `adopt` is: only what rests in nobody's hands; by its name, also what is held under a lease that has ended.
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

    def release(self, id: str, *, by: str, reason: str, decision: Decision | None = None) -> bool:
        """End a job's hold: it is due at once, and a remark says who decided. False, and nothing changed, if it is not held.

        A decision is written to every outside call of the job that is in doubt: it has a receipt now, or was never asked for.
        """
        ...

    # ------------------------------------------------------------ receipts
    def receipts(self, job_id: str) -> list[Receipt]:
        """What is remembered of the job's steps and outside calls, by name."""
        ...

    def remember(self, fence: Fence, name: str, args_hash: str, value: str) -> bool:
        """Keep a step's value, in place of an older one. False, and nothing kept, if the fence does not hold."""
        ...

    def ask(self, fence: Fence, name: str, args_hash: str) -> bool:
        """Write down that an outside call is about to be made; a doubtful asking of before is replaced, a receipt never is.

        Fenced as a move is: False, and nothing written, if the fence does not hold or there is a receipt already.
        """
        ...

    def apply(self, fence: Fence, name: str, value: str | None, *, decided_by: str) -> bool:
        """Write down what an outside call answered. Fenced by its own row only, asked for under this fence: knowledge is not refused because a lease ended."""
        ...

    def unask(self, fence: Fence, name: str) -> bool:
        """Forget an asking under this fence that got no receipt: the outside call surely did not happen."""
        ...

    # ------------------------------------------------------------ jobs go
    def prune(self, *, phase: Phase, age: float, limit: int, kinds: Sequence[str] | None = None) -> int:
        """Delete up to `limit` jobs, of these kinds or of all, that ended in this phase longer than `age` seconds ago, with executions and receipts.

        Their keys end, and their audit stays.
        """
        ...

    def archive(self, *, age: float, write: Callable[[Sequence[AuditEntry]], None], limit: int) -> int:
        """Hand the audit of up to `limit` jobs that are gone, whose last entry is older than `age` seconds, to `write`, then drop exactly those rows."""
        ...

    # ------------------------------------------------------------ reading
    def now(self) -> datetime:
        """The clock that decides about leases here."""
        ...

    def up_for(self) -> float | None:
        """Seconds since the server started, by its own clock, whatever `now` says.

        None if there is no server, or if its clock was set back to before its start.
        """
        ...

    def get(self, id: str) -> Job:
        """The job. `NotFound` if there is none."""
        ...

    def find(self, prefix: str, limit: int) -> list[str]:
        """The ids of up to `limit` jobs with this prefix, in order. The prefix may omit dashes.

        If there are none, the ids of pruned jobs whose history is kept.
        """
        ...

    def neighbours(self, ids: Sequence[str]) -> dict[str, tuple[str | None, str | None]]:
        """For each id, the ids of the previous and the next job."""
        ...

    def jobs(self, *, kind: str | None = None, state: str | None = None, phase: str | None = None, queue: str | None = None,
             tags: Mapping[str, str] | None = None, limit: int = 100, after: str | None = None, payloads: bool = True) -> list[Job]:
        """Jobs that match every given filter, newest first; `after` is the last id of the previous page.

        Without `payloads`, payloads and results are not read and stay empty, since each may take a megabyte.
        """
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
        """The data of all jobs that `verify` checks, in pages of at most `size` jobs, each one short snapshot.

        Payloads, results, errors and reasons are left out, so that a page has a bounded size.
        """
        ...

    def stuck(self, limit: int) -> list[Execution]:
        """Live executions, except handed-over ones, whose last heartbeat is older than twice their lease.

        For each kind the oldest `limit`, sorted with the oldest first.
        """
        ...

    def depths(self) -> list[Depth]:
        """How much waits and runs, by kind and queue."""
        ...

    def held(self, places: Sequence[tuple[str, str]], limit: int) -> list[Job]:
        """Held jobs, up to `limit` for each pair of kind and queue, the longest held first."""
        ...

    def failures(self, age: float, newest: int) -> list[Failures]:
        """Jobs that failed for good in the last `age` seconds, by kind: their number, and the `newest` of each.

        Cancelled, rejected, expired and redriven jobs do not count.
        """
        ...

    def handed(self, kind: str, external_id: str) -> int:
        """How many live executions of this kind the outside knows by this id, in whosever hands they are."""
        ...

    def outside(self) -> list[Outside]:
        """How the handed-over work of each kind that has a reconciler stands, by kind."""
        ...

    # ------------------------------------------------------------ workers and schedules
    def report_worker(self, worker: WorkerFacts) -> None:
        """Write a worker's row, with a beat of now."""
        ...

    def report_outside(self, kind: str, error: str | None) -> None:
        """The outside could not be asked, or, with no error, answered: how often it could not in a row, since when and why is kept with the kind."""
        ...

    def remove_worker(self, name: str) -> None:
        """A worker has gone in good order."""
        ...

    def workers(self) -> list[WorkerSeen]:
        """Every worker that has not gone in good order, by name."""
        ...

    def forget_workers(self, silent: float) -> int:
        """Drop the rows of workers that have not been heard of for so many seconds."""
        ...

    def schedule(self, facts: ScheduleFacts) -> datetime | None:
        """Keep a schedule as it is declared now, and answer its last tick: the present moment if it is new. None if it is paused."""
        ...

    def ticked(self, name: str, tick: datetime) -> None:
        """The schedule's ticks up to this one are dealt with. Its last tick never goes back."""
        ...

    def listen(self, wake: Callable[[], None]) -> Listening:
        """Have `wake` called, from another thread, soon after jobs have come in. A hint only: it may come late, twice, for nothing, or never."""
        ...

    # ------------------------------------------------------------ its own life
    def transaction(self) -> AbstractContextManager[Tx]:
        """A transaction on this database, committed at the end of the block and rolled back if it raises; good as `conn` for `enqueue`."""
        ...

    def close(self) -> None:
        """Give back every connection. The next verb opens new ones."""
        ...
