"""Archives old history of deleted jobs in batches, and creates and drops the monthly partitions of the audit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.job import AuditEntry
from ..engine.context import WorkerContext
from ..errors import InterlockError
from ..jobs.user_code import try_call

Archive = Callable[[Sequence[AuditEntry]], None]
"""Stores entries outside the database. They are deleted when it returns, and kept if it raises."""
EVERY = 3600.0
RETRY_EVERY = 60.0
LIMIT = 1000
MAX_BATCHES = 10
"""The most batches in one run. The next run continues a second later."""


@dataclass(frozen=True)
class AuditRetention:
    """How many seconds the history of a deleted job is kept, and the function that stores it elsewhere."""

    age: float
    archive: Archive


class Archiving:
    """Moves history past its retention out of the database. The database deletes only what was archived."""

    def __init__(self, context: WorkerContext, retention: AuditRetention | None) -> None:
        self._context = context
        self._retention = retention
        self._next = float("-inf")

    def run(self) -> int:
        """Archive once an hour, or at every call while history is left over. Returns the number of jobs.

        If the archive function raises, the next run is a minute later.
        """
        now = self._context.sleeper.monotonic()
        if self._retention is None or now < self._next:
            return 0
        self._next = now + RETRY_EVERY
        archived, complete = self._archive_all(self._retention)
        complete = complete and self._remove_all(self._retention)
        self._next = now + EVERY if complete or self._context.stopped.is_set() else now
        return archived

    def _archive_all(self, retention: AuditRetention) -> tuple[int, bool]:
        """Archive up to `MAX_BATCHES` batches. Returns how many jobs were archived, and whether none is left."""
        archived = 0
        for _ in range(MAX_BATCHES):
            batch = self._archive(retention)
            archived += batch
            if batch < LIMIT:
                return archived, True
            if self._context.stopped.is_set():
                break
        return archived, False

    def _remove_all(self, retention: AuditRetention) -> bool:
        """Remove archived history that is still stored. Returns whether none is left."""
        for _ in range(MAX_BATCHES):
            if not self._context.store.retention.remove_archived(age=retention.age, limit=LIMIT):
                return True
            if self._context.stopped.is_set():
                break
        return False

    def _archive(self, retention: AuditRetention) -> int:
        def write(entries: Sequence[AuditEntry]) -> None:
            _, error = try_call(lambda: retention.archive(entries))
            if error is not None:
                raise InterlockError(
                    f"the archive function raised {type(error).__name__}: {error}. The history stays in the database; "
                    f"the worker tries again in {RETRY_EVERY:g} s."
                ) from error

        return self._context.store.retention.archive(age=retention.age, write=write, limit=LIMIT)


class Partitioning:
    """Creates the partitions of the coming months, if the audit is partitioned."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._next = float("-inf")

    def run(self) -> int:
        """Create the missing partitions once an hour. Returns no jobs."""
        now = self._context.sleeper.monotonic()
        if now >= self._next:
            self._next = now + EVERY
            self._context.store.retention.add_partitions()
        return 0
