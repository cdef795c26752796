"""Retention: deletes jobs that ended long enough ago, in batches."""

from collections.abc import Mapping

from ..core.job import Phase
from ..engine.context import WorkerContext

DAY = 86_400.0
RETENTION: Mapping[Phase, float] = {"succeeded": 7 * DAY}
"""The default retention: how many seconds jobs are kept after their end, by phase. Other jobs are kept forever."""
EVERY = 60.0
LIMIT = 1000
MAX_BATCHES = 10
"""The most batches of a phase in one run. The next run continues a second later."""


class Pruning:
    """Deletes jobs past their retention, ended windows of unique keys, and rows of workers silent for a day."""

    def __init__(self, context: WorkerContext, retention: Mapping[Phase, float]) -> None:
        self._context = context
        self._retention = retention
        self._next = float("-inf")

    def run(self) -> int:
        """Prune once a minute, or at every call while jobs are left over. Returns how many jobs were deleted."""
        if self._context.sleeper.monotonic() < self._next:
            return 0
        results = [self._prune(phase, age) for phase, age in self._retention.items()]
        windows = self._context.store.retention.forget_windows(LIMIT)
        self._context.store.workers.forget(DAY)
        self._context.store.limits.forget_keys()
        if windows < LIMIT and all(complete for _, complete in results):
            self._next = self._context.sleeper.monotonic() + EVERY
        return sum(deleted for deleted, _ in results)

    def _prune(self, phase: Phase, age: float) -> tuple[int, bool]:
        """Delete up to `MAX_BATCHES` batches. Returns how many jobs were deleted, and whether that was all of them."""
        deleted = 0
        for _ in range(MAX_BATCHES):
            batch = self._context.store.retention.prune(
                phase=phase, age=age, limit=LIMIT, kinds=sorted(self._context.kinds)
            )
            deleted += batch
            if batch < LIMIT:
                return deleted, True
            if self._context.stopped.is_set():
                break
        return deleted, False
