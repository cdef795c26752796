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

        It finds waiting and running jobs, and jobs that ended in a range of time, by the indexes that have only these.
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
        the same time, only one redrives it. A job whose unique key an active job has is not redriven either.

        What waits for an old job waits for the new one instead, also if the failure holds it or is about to cancel it.
        What waits for a batch waits for it again when no failed job of it is left that was not redriven. The new job
        waits for what the old one waited for, except for what has failed.

        Receipts, `admit` and `conn` are those of `queue.enqueue`.
        """
        ...

    def delete(self, ids: Sequence[str], *, by: str, reason: str | None) -> list[str]:
        """Delete those of these jobs that have ended, and return their ids. A note `delete` is added to their audit.

        Their executions, receipts and keys are deleted too; their audit stays.
        """
        ...
