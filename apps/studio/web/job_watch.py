"""Watches one user's jobs and credits for an event stream."""

from collections.abc import Callable

from ..gallery import Changes, Gallery, Job
from ..ledger import BalanceVersion
from ..users import Users
from .responses import to_camel_case

RECENT_JOBS = 100
"""The number of newest jobs that are watched. Open jobs are always watched."""
Event = tuple[str, object]


class JobWatch:
    """Watches one user. Each poll returns the changes since the previous one; the first returns all. It blocks."""

    def __init__(self, gallery: Gallery, users: Users, user_id: int, format_job: Callable[[Job], object]) -> None:
        self._gallery, self._users, self.user_id, self._format_job = gallery, users, user_id, format_job
        self._changes: Changes = {}
        """When each watched job last changed, as of the last poll."""
        self.open_jobs: set[str] = set()
        """Jobs that were reported and may change without an entry in the ledger."""
        self._balance_version: BalanceVersion | None = None

    def is_stale(self, balance_versions: BalanceVersion, changes: Changes) -> bool:
        """Whether a query would find changes: a new ledger entry (order, end or grant), or a changed open job."""
        return balance_versions != self._balance_version or any(
            changes.get(id) != self._changes[id] for id in self.open_jobs
        )

    def poll(self) -> list[Event]:
        """Return changed jobs, oldest first, then the credits. If a poll fails, the next one returns its events too."""
        # Read this first: a later entry increases the version, so the next poll finds it.
        balance_versions = self._users.balance_versions([self.user_id])[self.user_id]
        newest = self._gallery.changes(self.user_id, RECENT_JOBS)
        found = self._followed_jobs(newest)
        jobs = self._gallery.jobs_by_id(self.user_id, [id for id, at in found.items() if self._changes.get(id) != at])
        events: list[Event] = [("job", self._format_job(job)) for job in jobs]
        if self._balance_version is None or balance_versions.balance != self._balance_version.balance:
            events.append(("credits", to_camel_case(balance_versions.balance)))

        open_jobs = self.open_jobs.difference(job.id for job in jobs).union(
            job.id for job in jobs if job.finished_at is None
        )
        # Use the times as read with the jobs: a job that changed between the two queries is reported once.
        changes = {**self._changes, **{job.id: job.updated_at for job in jobs}}
        self._changes = {id: at for id, at in changes.items() if id in newest or id in open_jobs}
        self.open_jobs, self._balance_version = open_jobs, balance_versions
        return events

    def _followed_jobs(self, newest: Changes) -> Changes:
        """The newest jobs, all open jobs, and jobs that were open at the last poll."""
        found = newest
        # The first poll, or so many new jobs that some are not among the newest.
        if newest.keys().isdisjoint(self._changes):
            found = found | self._gallery.changes_of_open_jobs(self.user_id)
        return found | self._gallery.changes_by_id(self.user_id, self.open_jobs.difference(found))
