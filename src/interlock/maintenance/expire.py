"""Expires waiting jobs whose time to live has ended, and runs the hooks of the state that they enter."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.job import Job
from ..engine.context import WorkerContext
from ..engine.settle_events import note_hook_failure
from ..engine.settle_waiting import WaitingResult, WaitingSettler
from ..telemetry import events

LIMIT = 100
ROUNDS = 100
"""The most batches in one run. The next run continues a second later."""
SOONEST = 1.0
"""The shortest time, in seconds, until the worker retries a job that it could not expire."""
REASON = "its time to live has ended"


@dataclass(slots=True)
class _FailedExpiry:
    """The failures of a job that could not be expired, and the monotonic time of the next try."""

    failures: int
    until: float


class Expiry:
    """Expires jobs of the worker's kinds. A job that fails is retried with backoff and does not delay others."""

    def __init__(self, context: WorkerContext, owner: str) -> None:
        self._context = context
        self._owner = owner
        self._settler = WaitingSettler(context, owner)
        self._failed: dict[str, _FailedExpiry] = {}

    def run(self) -> int:
        """Expire everything that is due now. Returns how many jobs were expired."""
        done, kinds = 0, sorted(self._context.kinds)
        for _ in range(ROUNDS):
            limit = LIMIT + len(self._failed)
            jobs = self._context.store.inspect.expired(kinds, limit)
            self._failed = {job.id: failed for job in jobs if (failed := self._failed.get(job.id))}
            due = [job for job in jobs if self._is_due(job.id)]
            done += self._expire(due)
            if not due or len(jobs) < limit or self._context.stopped.is_set():
                break
        return done

    def _is_due(self, id: str) -> bool:
        failed = self._failed.get(id)
        return failed is None or failed.until <= self._context.sleeper.monotonic()

    def _expire(self, jobs: Sequence[Job]) -> int:
        results = self._settler.settle_all(jobs, "expire", REASON)
        for result in results:
            if result.stored:
                self._failed.pop(result.job.id, None)
            elif result.error is not None:
                self._handle_error(result, result.error)
        return sum(result.stored for result in results)

    def _handle_error(self, result: WaitingResult, error: Exception) -> None:
        job, failures = result.job, self._postpone(result.job)
        if result.hook_of is None:
            self._context.events.emit(events.WorkerError(self._owner, f"expiring job {job.id}", error))
        elif failures == 1:
            note_hook_failure(
                self._context,
                job,
                result.hook_of,
                error,
                actor=self._owner,
                retried_by="maintenance loop",
                attempt=None,
            )

    def _postpone(self, job: Job) -> int:
        before = self._failed.get(job.id)
        failures = before.failures + 1 if before else 1
        delay = max(self._context.kinds[job.kind].backoff.delay(failures, self._context.random()), SOONEST)
        self._failed[job.id] = _FailedExpiry(failures, self._context.sleeper.monotonic() + delay)
        return failures
