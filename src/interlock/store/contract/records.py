"""The parts of a store for records: registry, receipts, control, workers, retention."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ...core.job import AuditEntry, Phase
from ...core.lifecycle import Lifecycle
from ..flow_types import DeclaredLimit
from ..types import Decision, Fence, KindFacts, Migrated, Receipt, WorkerFacts, WorkerSeen


class RegistryPart(Protocol):
    """The schema, and the lifecycles and kinds registered in it."""

    def migrate(
        self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts], limits: Sequence[DeclaredLimit] = ()
    ) -> Migrated:
        """Bring the schema to this code's version and register the lifecycles, kinds and limits.

        A lifecycle that is already registered with the same transitions keeps its version, even if another app
        registered it or newer versions exist; a changed one gets the next version. The database accepts the transitions
        of all registered versions. A limit that was changed at run time stays as it was changed. Running `migrate`
        again changes nothing. Raise `InterlockError` if the database is newer than the code.
        """
        ...

    def migration_sql(
        self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts], limits: Sequence[DeclaredLimit] = ()
    ) -> str:
        """Return the SQL that `migrate` would run on an empty database, to read or to run by other means."""
        ...

    def version_of(self, lifecycle: Lifecycle) -> int:
        """Return the registered version of exactly this lifecycle. Raise `NotMigrated` if it is not registered."""
        ...

    def lifecycle(self, name: str, version: int) -> Lifecycle:
        """Return a registered lifecycle, which another app may have registered. Raise `NotFound` if there is none."""
        ...

    def kind(self, name: str) -> KindFacts | None:
        """Return the facts that `migrate` last stored for this kind; None if no app has registered it."""
        ...


class ReceiptsPart(Protocol):
    """Saved results of steps and effects."""

    def for_job(self, job_id: str) -> list[Receipt]:
        """Return the saved steps and effects of the job, by name."""
        ...

    def record_step(self, fence: Fence, name: str, args_hash: str, value: str) -> bool:
        """Save a step's value, replacing an older one. Return False and save nothing if the fence does not match."""
        ...

    def begin_effect(self, fence: Fence, name: str, args_hash: str) -> bool:
        """Record that an effect is about to be called. It replaces an effect whose result is unknown, never a receipt.

        Return False and write nothing if the fence does not match or a receipt exists.
        """
        ...

    def record_effect(self, fence: Fence, name: str, value: str | None, *, decided_by: str) -> bool:
        """Save the result of an effect that began under this fence.

        The store checks only the effect's row, not the lease: a known result is saved even if the lease has ended.
        """
        ...

    def discard_effect(self, fence: Fence, name: str) -> bool:
        """Delete an effect that began under this fence and has no receipt, because the call did not happen."""
        ...


class ControlPart(Protocol):
    """An operator's requests about jobs, and notes in their audit."""

    def request_cancel(self, id: str, *, by: str, reason: str | None) -> bool:
        """Request that a running job stops: store the request and an audit note. A second request changes nothing.

        Return False and change nothing if the job is not running or is past its commit boundary.
        """
        ...

    def request_cancels(self, ids: Sequence[str], *, by: str, reason: str | None) -> dict[str, bool]:
        """`request_cancel` for many jobs. Return the jobs that have a request now; True means this call stored it."""
        ...

    def add_note(self, job_id: str, *, attempt: int | None, event: str, actor: str, reason: str | None) -> None:
        """Add an entry that is not a transition to the job's audit. Do nothing if the job was deleted."""
        ...

    def release(self, id: str, *, by: str, reason: str, decision: Decision | None = None) -> bool:
        """End a job's hold: the job is due at once, and an audit note says who decided. Return False if it is not held.

        The decision applies to every effect of the job whose result is unknown: the store records that the effect
        happened, or discards it.
        """
        ...


class WorkersPart(Protocol):
    """The workers that run on this database."""

    def report(self, worker: WorkerFacts) -> None:
        """Store a worker's report and set its heartbeat to now."""
        ...

    def remove(self, name: str) -> None:
        """Delete the row of a worker that has shut down."""
        ...

    def all(self) -> list[WorkerSeen]:
        """Return every worker that has not been removed, by name."""
        ...

    def forget(self, silent: float) -> int:
        """Delete the rows of workers without a heartbeat for this many seconds, and return how many there were."""
        ...


class RetentionPart(Protocol):
    """Deletion of old jobs and their audit."""

    def prune(self, *, phase: Phase, age: float, limit: int, kinds: Sequence[str] | None = None) -> int:
        """Delete up to `limit` jobs, of these kinds or of all, that ended in this phase more than `age` seconds ago.

        Their executions, receipts and keys are deleted too; their audit stays. Return how many jobs were deleted. A job
        that keeps its unique key for some time after its end is deleted only after that time.
        """
        ...

    def forget_windows(self, limit: int) -> int:
        """Delete up to `limit` windows of unique keys that ended over a minute ago. Return how many were deleted.

        Windows of active jobs stay.
        """
        ...

    def archive(self, *, age: float, write: Callable[[Sequence[AuditEntry]], None], limit: int) -> int:
        """Pass the audit of deleted jobs whose last entry is older than `age` seconds to `write`, then delete it.

        This deletes exactly the entries that `write` received, of at most `limit` jobs. Return the number of jobs.

        Of a partitioned audit, entries in the partition of a month stay stored; they are not passed to `write` again.
        """
        ...

    def remove_archived(self, *, age: float, limit: int) -> bool:
        """Remove archived entries that are still stored. Return False if nothing was removed.

        Drop the partition of each month that ended more than `age` seconds ago, if every job of it is deleted and its
        audit was archived. If a stored job still prevents this 31 days later, delete the archived entries of up to
        `limit` jobs of that month. If a month cannot be dropped, continue with the others, and raise its error when
        nothing else is left to remove. A SQLite store has nothing to remove.
        """
        ...

    def partition_audit(self) -> bool:
        """Partition the audit by the month in which a job was created. Return False if it is partitioned already.

        Everything up to the end of this month becomes one partition. Until the call returns, the audit is locked.
        Raise `UsageError` on SQLite, which has no partitions.
        """
        ...

    def add_partitions(self) -> int:
        """Create the missing partitions of this month and the next two, if the audit is partitioned.

        Return how many were created.
        """
        ...
