"""The part of a store for operations on many jobs."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...core.job import Job
from ..selection import Counted, Redriven, SelectedJob, Selection
from ..types import NewJob


class BulkPart(Protocol):
    """Selects many jobs, and redrives and deletes them. One job is redriven and deleted in the same way."""

    def count(self, selection: Selection) -> Counted:
        """Return how many jobs are selected, by kind and state, the range of their ids, and when the last one ended.

        It reads waiting and running jobs, and jobs that ended in a range of time, from the indexes of only such jobs.
        """
        ...

    def page(self, selection: Selection, start: str, last: str, limit: int) -> list[SelectedJob]:
        """Return up to `limit` selected jobs with ids from `start` to `last`, in order, without payloads and results.

        The pages of a selection together read the table at most once, and none sorts it.
        """
        ...

    def get(self, ids: Sequence[str]) -> list[Job]:
        """Return those of these jobs that exist, in the order of their ids."""
        ...

    def redrive(
        self,
        jobs: Sequence[NewJob],
        *,
        again: bool,
        reason: str | None,
        conn: object | None = None,
        admit: Callable[[Any, NewJob], None] | None = None,
    ) -> list[Redriven]:
        """Store each job whose `redrive_of` names a job that ended without success. Results keep the order.

        A note `redrive` in the old job's audit says which job redrives it. It is stored in the same transaction, in
        which the old jobs are locked. Unless `again` is set, a job with such a note is not redriven: of two calls at
        the same time, only one redrives it. Nor is a job whose unique key belongs to an active job.

        Jobs that depend on an old job depend on the new one instead, even if the failure holds them or is about to
        cancel them. Jobs that depend on a batch wait for it again once each of its failed jobs was redriven. The new
        job has the dependencies of the old one; those that have failed no longer stop it.

        Receipts, `admit` and `conn` are those of `queue.enqueue`.
        """
        ...

    def delete(self, ids: Sequence[str], *, by: str, reason: str | None) -> list[str]:
        """Delete those of these jobs that have ended, and return their ids. A note `delete` is added to their audit.

        Their executions, receipts and keys are deleted too; their audit stays.
        """
        ...
