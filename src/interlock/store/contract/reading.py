"""The parts of a store that read: jobs, and work that was handed over to external systems."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Protocol

from ...core.job import AuditEntry, Execution, Job
from ...core.job_filter import JobFilter
from ..report_types import Depth, ExternalWork, Failures
from ..selection import EVERY_JOB
from ..types import JobRecord, MaintenanceDue


class InspectPart(Protocol):
    """Reads jobs, executions and audits. No method changes anything."""

    def now(self) -> datetime:
        """Return the time by the clock that decides about leases."""
        ...

    def uptime(self) -> float | None:
        """Return the seconds since the server started, by its own clock, which may differ from `now`.

        Return None if there is no server, or if its clock was set back to before its start.
        """
        ...

    def get(self, id: str) -> Job:
        """Return a job. Raise `NotFound` if it does not exist."""
        ...

    def find(self, prefix: str, limit: int) -> list[str]:
        """Return the ids of up to `limit` jobs with this prefix, in order. The prefix may omit dashes.

        If no job matches, return the ids of pruned jobs whose audit is kept.
        """
        ...

    def adjacent_ids(self, ids: Sequence[str]) -> dict[str, tuple[str | None, str | None]]:
        """Return for each id the ids of the previous and the next job."""
        ...

    def jobs(
        self,
        *,
        matching: JobFilter = EVERY_JOB,
        limit: int = 100,
        after: str | None = None,
        payloads: bool = True,
    ) -> list[Job]:
        """Return the jobs that match every given filter, newest first; `after` is the last id of the previous page.

        Without `payloads`, payloads and results stay empty, since each may take a megabyte.
        """
        ...

    def executions(self, id: str) -> list[Execution]:
        """Return all executions of a job, by attempt."""
        ...

    def history(self, id: str) -> list[AuditEntry]:
        """Return the audit of a job, in order, even after the job was pruned."""
        ...

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of jobs per lifecycle and state."""
        ...

    def expired(self, kinds: Sequence[str], limit: int) -> list[Job]:
        """Return the waiting jobs of these kinds whose TTL has ended, the longest ended first."""
        ...

    def maintenance_due(self, kinds: Sequence[str]) -> MaintenanceDue:
        """Return the time of the store's clock, and whether a lease or a TTL of these kinds has ended by then.

        Leases of handed-over work do not count. One statement of a few index lookups answers it. It is only a hint:
        other workers may be faster.
        """
        ...

    def job_records(self, size: int = 1000) -> Iterator[list[JobRecord]]:
        """Yield the data that `verify` checks, of all jobs, in pages of at most `size` jobs. Each page is one snapshot.

        Payloads, results, errors and reasons are left out, so that a page has a bounded size.
        """
        ...

    def stuck(self, limit: int) -> list[Execution]:
        """Return the live executions whose last heartbeat is older than twice their lease, except handed-over ones.

        At most `limit` of each kind, the oldest first.
        """
        ...

    def depths(self) -> list[Depth]:
        """Return how many jobs wait and run, by kind and queue."""
        ...

    def held_jobs(self, places: Sequence[tuple[str, str]], limit: int) -> list[Job]:
        """Return up to `limit` held jobs of each pair of kind and queue, sorted with the longest held first."""
        ...

    def recent_failures(self, age: float, newest: int) -> list[Failures]:
        """Return how many jobs failed for good in the last `age` seconds, by kind, with the `newest` of each kind.

        Cancelled, rejected, expired and redriven jobs do not count.
        """
        ...


class ExternalPart(Protocol):
    """Work that was handed over to external systems, and the health of those systems."""

    def work(self) -> list[ExternalWork]:
        """Return the handed-over work of each kind that has a reconciler, and the health of its checks, by kind."""
        ...

    def count(self, kind: str, external_id: str) -> int:
        """Return how many live executions of this kind have this external id, with or without an owner."""
        ...

    def asking_job(self, root: str) -> str | None:
        """Return the id of the job that a token answers. `root` is the first job of a chain of redrives.

        It is the newest job of the chain that has not ended without success or, if all have, the newest one. None if
        all were deleted.
        """
        ...

    def report_check(self, kind: str, error: str | None) -> None:
        """Record that a check of the external system failed with this error, or succeeded (None).

        The store counts the failures in a row and keeps the last error and the time of the first failure.
        """
        ...
