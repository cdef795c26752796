"""Changes one batch of jobs for an operation on many: cancel, reject, redrive or delete."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..core.job import Job, Phase
from ..core.job_filter import JobFilter
from ..engine.settle_waiting import WaitingSettler
from ..store.bisect import bisect
from ..store.selection import ENDED_PHASES, LIVE_PHASES, SelectedJob, Selection
from .bulk_result import BulkResult
from .operator import ROUNDS, Operator
from .redrive import RedriveOptions, is_unavailable, redrive_jobs

PAYLOADS = 100
"""The most jobs that are redriven at once. Their payloads are in memory, and each may take a megabyte."""

DELETED = "deleted in the meantime"
NEEDED = "another job still waits for it or its batch"
MOVED = "moved by workers in the meantime, or already committed"
NOT_ALLOWED = "not allowed by the lifecycle"
ASKED = "asked to stop before"
REDRIVEN = "redriven before"
KEY_TAKEN = "another active job has the unique key"


class BulkAction(Protocol):
    """One kind of change."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the jobs that it can change."""
        ...

    def select(self, matching: JobFilter, phases: tuple[Phase, ...]) -> Selection:
        """Return the selection of the matching jobs in these phases."""
        ...

    def change(self, operator: Operator, selected: Sequence[SelectedJob], result: BulkResult) -> None:
        """Change a batch of jobs, and add what happened to the result."""
        ...


@dataclass(frozen=True, slots=True)
class EndJobs:
    """Cancels or rejects waiting jobs. If it cancels, it also asks running jobs to stop."""

    event: Literal["cancel", "reject"]
    reason: str | None = None

    @property
    def phases(self) -> tuple[Phase, ...]:
        return LIVE_PHASES if self.event == "cancel" else ("pending",)

    def select(self, matching: JobFilter, phases: tuple[Phase, ...]) -> Selection:
        return Selection(matching, phases)

    def change(self, operator: Operator, selected: Sequence[SelectedJob], result: BulkResult) -> None:
        jobs = [each.job for each in selected]
        for _ in range(ROUNDS):
            waiting, running = ([job for job in jobs if job.phase == phase] for phase in LIVE_PHASES)
            result.skip(MOVED, len(jobs) - len(waiting) - len(running))
            moved = self._end(operator, waiting, result) + self._ask_to_stop(operator, running, result)
            if not moved:
                return
            # Workers have claimed or returned these jobs since they were read.
            jobs = operator.store.bulk.get([job.id for job in moved])
            result.skip(DELETED, len(moved) - len(jobs))
        result.skip(MOVED, len(jobs))

    def _end(self, operator: Operator, jobs: Sequence[Job], result: BulkResult) -> list[Job]:
        """End waiting jobs. Returns those that were moved since they were read."""
        lifecycle = operator.store.registry.lifecycle
        allowed = [job for job in jobs if lifecycle(job.lifecycle, job.lifecycle_version).arrow(job.state, self.event)]
        result.skip(NOT_ALLOWED, len(jobs) - len(allowed))
        moved = list[Job]()
        for one in WaitingSettler(operator.context, operator.actor).settle_all(allowed, self.event, self.reason):
            if one.stored:
                result.changed += 1
            elif one.error is not None:
                result.fail(one.job.id, one.error)
            else:
                moved.append(one.job)
        return moved

    def _ask_to_stop(self, operator: Operator, jobs: Sequence[Job], result: BulkResult) -> list[Job]:
        """Store cancel requests. Returns the jobs that got none, because they no longer run or are being committed."""
        if self.event != "cancel":
            result.skip(MOVED, len(jobs))
            return []
        lifecycle = operator.store.registry.lifecycle
        allowed = [job for job in jobs if lifecycle(job.lifecycle, job.lifecycle_version).targets("cancel")]
        result.skip(NOT_ALLOWED, len(jobs) - len(allowed))
        if not allowed:
            return []
        ids = [job.id for job in allowed]
        asked = operator.store.control.request_cancels(ids, by=operator.actor, reason=self.reason)
        new = sum(asked.values())
        result.changed += new
        result.asked_to_stop += new
        result.skip(ASKED, len(asked) - new)
        return [job for job in allowed if job.id not in asked]


@dataclass(frozen=True, slots=True)
class RedriveJobs:
    """Enqueues failed jobs again, as new jobs."""

    options: RedriveOptions

    @property
    def phases(self) -> tuple[Phase, ...]:
        return ("failed",)

    def select(self, matching: JobFilter, phases: tuple[Phase, ...]) -> Selection:
        # Cancelled, rejected and expired jobs ended by a decision: redrive them only if their state is named.
        return Selection(matching, phases, failures=matching.state is None, redriven=True)

    def change(self, operator: Operator, selected: Sequence[SelectedJob], result: BulkResult) -> None:
        ids = [each.job.id for each in selected if self.options.again or not each.redriven]
        result.skip(REDRIVEN, len(selected) - len(ids))
        for start in range(0, len(ids), PAYLOADS):
            self._redrive(operator, ids[start : start + PAYLOADS], result)

    def _redrive(self, operator: Operator, ids: Sequence[str], result: BulkResult) -> None:
        jobs = operator.store.bulk.get(ids)
        result.skip(DELETED, len(ids) - len(jobs))
        for job, redriven in zip(jobs, redrive_jobs(operator.context, jobs, self.options), strict=True):
            if isinstance(redriven, Exception):
                result.fail(job.id, redriven)
            elif redriven.result == "stored":
                result.changed += 1
            else:
                reasons = {"redriven_before": REDRIVEN, "key_taken": KEY_TAKEN, "not_failed": DELETED}
                result.skip(reasons[redriven.result])


@dataclass(frozen=True, slots=True)
class DeleteJobs:
    """Deletes jobs that have ended."""

    reason: str | None = None

    @property
    def phases(self) -> tuple[Phase, ...]:
        return ENDED_PHASES

    def select(self, matching: JobFilter, phases: tuple[Phase, ...]) -> Selection:
        return Selection(matching, phases)

    def change(self, operator: Operator, selected: Sequence[SelectedJob], result: BulkResult) -> None:
        def delete(ids: Sequence[str]) -> None:
            deleted = operator.store.bulk.delete(ids, by=operator.actor, reason=self.reason)
            result.changed += len(deleted)
            left = sorted(set(ids) - set(deleted))
            needed = len(operator.store.bulk.get(left)) if left else 0
            result.skip(NEEDED, needed)
            result.skip(DELETED, len(left) - needed)

        # A table of the user may refer to a job, which then cannot be deleted.
        for id, error in bisect([each.job.id for each in selected], delete, is_unavailable):
            result.fail(id, error)
