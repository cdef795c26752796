"""Operations on many jobs: cancel, reject, redrive or delete all jobs that match a filter, batch by batch."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Literal

from ..core.ids import next_id
from ..core.job import Job, Phase
from ..core.job_filter import JobFilter
from ..core.payload import clean
from ..errors import UsageError
from ..jobs.async_twin import async_twin
from ..store.selection import Counted
from .bulk_actions import BulkAction, DeleteJobs, EndJobs, RedriveJobs
from .bulk_result import BulkResult
from .operator import Operator
from .redrive import RedriveOptions

BATCH = 500
GONE = "changed by others in the meantime"
OnBatch = Callable[[BulkResult], object]


class BulkOperation:
    """One operation on the jobs that match a filter when it begins.

    It stores each batch before it reads the next one. After an interruption, run the same operation again: it continues
    with the jobs that are left, because it does not select changed jobs, or skips them.

    It does not change jobs that are stored or end after it began. Waiting and running jobs may change while it runs,
    so `cancel` and `reject` change those that were stored before it began and match when their batch is read.
    """

    def __init__(self, operator: Operator, action: BulkAction, matching: JobFilter) -> None:
        """Count the jobs. `UsageError` if the filter is empty, or selects only jobs that cannot be changed."""
        if matching.is_empty:
            raise UsageError(
                "No filter is given, so this would change every job. Give at least one, such as a kind or a phase."
            )
        phases: tuple[Phase, ...] = tuple(each for each in action.phases if matching.phase in (None, each))
        if not phases:
            raise UsageError(
                f"phase is {matching.phase!r}, and this operation cannot change such jobs: give "
                f"{' or '.join(action.phases)}."
            )
        self._operator = operator
        self._action = action
        self._selection = action.select(matching, phases)
        self._bulk = operator.store.bulk
        self._counted: Counted = self._bulk.count(self._selection)
        # A job that ends from now on may match, but was not counted.
        self._selection = replace(self._selection, ended_until=self._counted.ended_until)
        self.result = BulkResult(self._counted.counts)
        """What the operation has done so far."""

    def first(self, limit: int) -> list[Job]:
        """Return the first jobs that the operation would change, the oldest first, without payloads."""
        start, last = self._counted.first, self._counted.last
        page = self._bulk.page(self._selection, start, last, limit) if start and last else []
        return [each.job for each in page]

    def batches(self) -> Iterator[BulkResult]:
        """Change the jobs, the oldest first. After each batch that is stored, yield the result so far."""
        start, last = self._counted.first, self._counted.last
        while start is not None and last is not None:
            page = self._bulk.page(self._selection, start, last, BATCH)
            self._action.change(self._operator, page, self.result)
            yield self.result
            start = next_id(page[-1].job.id) if len(page) == BATCH else None
        self.result.skip(GONE, max(self.result.matched - self.result.done, 0))


class Bulk:
    """Changes many jobs at once: `app.bulk.cancel(kind="mail", queue="slow", by="ann")`.

    The filters are those of `app.jobs`; at least one must be given. Each job's history records who changed it and why.
    Jobs that are stored or that end after the operation began are left alone. `on_batch` is called with the result so
    far after each batch; if it raises, the operation stops, and the stored batches stay. With `dry_run`, the result
    only says how many jobs match.
    """

    def __init__(self, operator: Callable[[str, str], Operator]) -> None:
        self._operator = operator

    def prepare(
        self,
        verb: Literal["cancel", "reject", "redrive", "delete"],
        matching: JobFilter,
        *,
        by: str,
        reason: str,
        fresh: bool = False,
        again: bool = False,
    ) -> BulkOperation:
        """Count the jobs that the operation would change."""
        why = clean(reason) or None
        action: BulkAction
        match verb:
            case "redrive":
                action = RedriveJobs(RedriveOptions(why, fresh=fresh, again=again))
            case "delete":
                action = DeleteJobs(why)
            case "cancel" | "reject":
                action = EndJobs(verb, why)
        return BulkOperation(self._operator(by, f"app.bulk.{verb}"), action, matching)

    def cancel(
        self,
        *,
        by: str,
        reason: str = "",
        kind: str | None = None,
        state: str | None = None,
        phase: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error_like: str | None = None,
        dry_run: bool = False,
        on_batch: OnBatch | None = None,
    ) -> BulkResult:
        """End the waiting jobs that match, and ask the running ones to stop. A running job may still succeed."""
        matching = JobFilter(
            kind=kind, state=state, phase=phase, queue=queue, tags=tags, since=since, until=until, error_like=error_like
        )
        return _run(self.prepare("cancel", matching, by=by, reason=reason), dry_run, on_batch)

    def reject(
        self,
        *,
        by: str,
        reason: str,
        kind: str | None = None,
        state: str | None = None,
        phase: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error_like: str | None = None,
        dry_run: bool = False,
        on_batch: OnBatch | None = None,
    ) -> BulkResult:
        """Reject the waiting jobs that match, if their lifecycles have a `reject` transition from their states."""
        matching = JobFilter(
            kind=kind, state=state, phase=phase, queue=queue, tags=tags, since=since, until=until, error_like=error_like
        )
        return _run(self.prepare("reject", matching, by=by, reason=reason), dry_run, on_batch)

    def redrive(
        self,
        *,
        by: str,
        reason: str = "",
        fresh: bool = False,
        again: bool = False,
        kind: str | None = None,
        state: str | None = None,
        phase: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error_like: str | None = None,
        dry_run: bool = False,
        on_batch: OnBatch | None = None,
    ) -> BulkResult:
        """Enqueue the failed jobs that match again, as new jobs.

        Cancelled, rejected and expired jobs do not match unless you name their `state`. Jobs that were redriven before
        are skipped, unless you redrive them `again`: running the same operation twice redrives each job once.
        """
        matching = JobFilter(
            kind=kind, state=state, phase=phase, queue=queue, tags=tags, since=since, until=until, error_like=error_like
        )
        operation = self.prepare("redrive", matching, by=by, reason=reason, fresh=fresh, again=again)
        return _run(operation, dry_run, on_batch)

    def delete(
        self,
        *,
        by: str,
        reason: str = "",
        kind: str | None = None,
        state: str | None = None,
        phase: str | None = None,
        queue: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        error_like: str | None = None,
        dry_run: bool = False,
        on_batch: OnBatch | None = None,
    ) -> BulkResult:
        """Delete the jobs that match and have ended. Their history stays, and says who deleted them and why."""
        matching = JobFilter(
            kind=kind, state=state, phase=phase, queue=queue, tags=tags, since=since, until=until, error_like=error_like
        )
        return _run(self.prepare("delete", matching, by=by, reason=reason), dry_run, on_batch)

    acancel = async_twin(cancel)
    areject = async_twin(reject)
    aredrive = async_twin(redrive)
    adelete = async_twin(delete)


def _run(operation: BulkOperation, dry_run: bool, on_batch: OnBatch | None) -> BulkResult:
    if not dry_run:
        for result in operation.batches():
            if on_batch is not None:
                on_batch(result)
    return operation.result
