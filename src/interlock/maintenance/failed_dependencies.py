"""Resolves dependencies that a crash left over, and cancels the jobs whose dependencies failed."""

from collections.abc import Sequence

from ..core.job import Job
from ..engine.context import WorkerContext
from ..engine.settle_waiting import WaitingResult, WaitingSettler
from ..telemetry import events

LIMIT = 500
ROUNDS = 100
"""The most batches in one run. The next run continues a second later."""


class Dependents:
    """Ends waiting jobs of the worker's kinds that have a cancel request, with the hooks of their kinds."""

    def __init__(self, context: WorkerContext, owner: str) -> None:
        self._context = context
        self._owner = owner

    def run(self) -> int:
        """Cancel jobs until none is left, also those that wait for a cancelled job. Returns how many were cancelled."""
        done, kinds = 0, sorted(self._context.kinds)
        for _ in range(ROUNDS):
            self._context.store.flow.resolve()
            jobs = self._context.store.flow.to_cancel(kinds, LIMIT)
            cancelled = sum(self._cancel(jobs))
            done += cancelled
            if not cancelled or self._context.stopped.is_set():
                break
        return done

    def _cancel(self, jobs: Sequence[Job]) -> list[bool]:
        """Cancel jobs, each with the actor and the reason of its request. Returns whether each is cancelled now."""
        groups: dict[tuple[str, str], list[Job]] = {}
        for job in jobs:
            groups.setdefault((job.cancel_requested_by or self._owner, job.cancel_reason or ""), []).append(job)
        results: list[WaitingResult] = []
        for (actor, reason), group in groups.items():
            results += WaitingSettler(self._context, actor).settle_all(group, "cancel", reason)
        for result in results:
            if result.error is not None:
                what = f"cancelling job {result.job.id}"
                self._context.events.emit(events.WorkerError(self._owner, what, result.error))
        return [result.stored for result in results]
