"""The parts of a store that run jobs: queue, transitions and leases."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ...core.job import Job
from ...core.transition import Move, Take
from ..flow_types import NewBatch
from ..types import ClaimRule, Enqueued, Fence, GroupCommit, Heartbeat, Lease, NewJob, Refusal, Renewal


class Subscription(Protocol):
    """A running listener, which `listen` started."""

    def close(self) -> None:
        """Stop the listener. It makes no call after this returns."""
        ...


class QueuePart(Protocol):
    """Enqueues and claims jobs."""

    def enqueue(
        self,
        jobs: Sequence[NewJob],
        *,
        conn: object | None = None,
        admit: Callable[[Any, NewJob], None] | None = None,
        batches: Sequence[NewBatch] = (),
    ) -> list[Enqueued]:
        """Store each job in its lifecycle's initial state, or find the job that has its key. Results keep the order.

        Keys are unique per kind. If two calls enqueue the same key at the same time, one stores the job and both return
        its id. The same `idempotency_key` with another payload raises `KeyReused`, and the call stores nothing. If the
        job that has the key is resting after a failure, it becomes due at once. One statement stores a thousand jobs.

        The store calls `admit` in the same transaction for each new job; if it raises, the call stores nothing. With
        `conn`, everything happens in the caller's own transaction, which the store never commits or rolls back. The
        store does not keep the connection.

        The store also stores the batches. A job that waits for others is *blocked*: no claim takes it until `resolve`
        has found that all of them have ended. All jobs and batches that a job waits for must exist.
        """
        ...

    def claim(
        self,
        by: str,
        claim_rules: Sequence[ClaimRule],
        queues: Sequence[str],
        limit: int,
        *,
        suspects: int | None = None,
        alone: bool = True,
    ) -> list[Lease]:
        """Lease up to `limit` due jobs to `by`: higher priority first, then the longest due. No job is leased twice.

        If `suspects` is given, at most that many are suspects: jobs whose `lease_losses` is above zero. Without
        `alone`, a claim skips suspects that have lost two leases or are on their last try, since they must run alone.
        Among jobs with a TTL, the one that expires first comes first. Kinds and queues of equal priority take turns, by
        their longest due job. While it works through a long backlog, a store may look for jobs with earlier due times
        only once a second.

        A claim takes only jobs whose kind and state a rule names. It skips jobs that are held, have a cancel request,
        are blocked, are past their TTL, or are in a paused queue or kind. It never exceeds a limit of the running jobs
        or of the rate, whatever other claims run at the same time. Each concurrency key gets its turn.
        Each job gets its next attempt with holder 1, makes its rule's transitions, which its audit records, and is
        pinned to the rule's version.
        """
        ...

    def due_in(self, claim_rules: Sequence[ClaimRule], queues: Sequence[str]) -> float | None:
        """Return the seconds until a claim could lease a job: zero if it could now, None if no job waits.

        This is only an estimate, since other workers claim too.
        """
        ...

    def listen(self, wake: Callable[[], None], on_open: Callable[[], None] | None = None) -> Subscription:
        """Call `wake` from another thread soon after jobs were enqueued.

        A call is only a hint: it may come late, twice, without new jobs, or never. Each time the listener opens a
        connection, it calls `on_open` instead, because jobs may have been enqueued before; without `on_open`, it calls
        `wake`.
        """
        ...


class TransitionsPart(Protocol):
    """Carries out decided transitions."""

    def move(self, moves: Sequence[Move]) -> list[Refusal]:
        """Carry out each move completely or not at all, independently of the others. Return the refused moves.

        If a job with a cancel request returns to a waiting state, the request is cleared and the job can be claimed.
        If the decision did not know of the request (`Move.saw_cancel_request` is False), the store refuses the move and
        the caller must decide again.

        A list may name each job only once. A move that was already carried out (`Refusal.already`) is not refused.
        """
        ...

    def commit(
        self,
        move: Move | Take,
        body: Callable[[Any, Job], None],
        *,
        transaction: Callable[[], AbstractContextManager[Any]] | None = None,
        timeout: float = 60.0,
    ) -> Refusal | None:
        """Carry out one move with the caller's function in its transaction.

        The store locks the rows, checks the fence, calls `body(tx, job)` and writes. If the move is refused, `body` is
        not called, or its writes are rolled back. If `body` raises, nothing is changed and the exception propagates.
        If `body` takes longer than `timeout` seconds, its writes are rolled back and `CommitTimeout` is raised; if its
        process is frozen, the server ends the transaction. `transaction` opens the caller's own transaction on this
        database, and `tx` is its handle; without `transaction`, `tx` is a `Tx`.
        """
        ...

    def commit_group(
        self,
        moves: Sequence[Move],
        body: Callable[[Any, Sequence[Job]], None],
        *,
        together: bool = False,
        timeout: float = 60.0,
    ) -> GroupCommit:
        """Carry out moves of different jobs, of one transition each, with the caller's function in one transaction.

        The store locks the rows in the order of the job ids and calls `body(tx, [job])` for each job whose fence
        matches, in a savepoint. With `together`, it calls `body` once, with all of these jobs. If `body` raises, takes
        longer than `timeout` seconds or ends the transaction, its writes are rolled back and its jobs are not moved. A
        group that has called functions for a tenth of a second calls no more: the other jobs are *late*. A job whose
        rows another transaction has locked is left out, so that the other jobs do not wait for that transaction.

        Nothing is refused or raised for a single job: the caller passes each job that is neither stored nor late to
        `commit`. If this method raises, no job is stored or, if the connection was lost during COMMIT, it is unknown
        whether all are, and `commit` finds out.
        """
        ...

    def take(self, takes: Sequence[Take]) -> list[Refusal]:
        """Carry out each take completely, or refuse it if the job no longer waits at the version that was read."""
        ...


class LeasesPart(Protocol):
    """Ownership of executions: which worker owns each one, and until when."""

    def renew(self, heartbeats: Sequence[Heartbeat]) -> Renewal:
        """Extend the leases of the listed executions, counted from now.

        The store does not wait for a row that is locked at this moment, and reports it as *busy*.
        """
        ...

    def lost_claims(self, by: str, known: Sequence[Fence]) -> list[Fence]:
        """Return the live executions of this owner that are not in `known`. Call it after a claim's reply was lost."""
        ...

    def adopt(
        self,
        by: str,
        kinds: Sequence[str],
        lease: float,
        limit: int,
        *,
        external: bool = False,
        committed: Sequence[str] | None = None,
    ) -> list[Lease]:
        """Take over up to `limit` live executions of these kinds whose lease has ended, the longest ended first.

        One conditional write sets owner, lease and `holder + 1`. Each returned lease says for how long the external
        system has not known the work, and how often the execution has changed owners since its commit.

        With `external`, only handed-over executions whose check is due are taken over. Without it, handed-over
        executions are skipped unless they are past the commit boundary; if `committed` is given, executions past the
        commit boundary are taken over only for those kinds.
        """
        ...

    def recall(
        self, by: str, kinds: Sequence[str], lease: float, limit: int, *, external_id: str | None = None
    ) -> list[Lease]:
        """Take over handed-over executions before their check is due.

        Without `external_id`, take over executions with a cancel request in a state that allows `cancel`, the longest
        requested first. With it, take over the executions that the external system knows by this id. Like `adopt`, this
        is one conditional write. It skips executions that a worker owns, unless `external_id` is given and their lease
        has ended.
        """
        ...
