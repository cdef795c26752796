"""Retention: what has ended long enough ago goes, a bite at a time."""

from collections.abc import Mapping

from ..job import Phase
from ..worker.desk import Desk

DAY = 86_400.0
RETENTION: Mapping[Phase, float] = {"succeeded": 7 * DAY}
"""How long jobs are kept after their end, in seconds. A phase that is not named is kept for ever."""
EVERY = 60.0
LIMIT = 1000
BITES = 10
"""Batches of a phase at one go at most: the rest comes a second later."""


class Pruning:
    """Deletes what its app keeps no longer, and the rows of workers that went without a word."""

    def __init__(self, desk: Desk, retention: Mapping[Phase, float]) -> None:
        self._desk = desk
        self._retention = retention
        self._next = float("-inf")

    def run(self) -> int:
        """Once a minute, and sooner while there is more. Answers how many jobs went."""
        if self._desk.waits.monotonic() < self._next:
            return 0
        bites = [self._bites(phase, age) for phase, age in self._retention.items()]
        self._desk.store.forget_workers(DAY)
        if all(ended for _, ended in bites):
            self._next = self._desk.waits.monotonic() + EVERY
        return sum(gone for gone, _ in bites)

    def _bites(self, phase: Phase, age: float) -> tuple[int, bool]:
        """How many went, and whether that was all."""
        gone = 0
        for _ in range(BITES):
            bite = self._desk.store.prune(phase=phase, age=age, limit=LIMIT, kinds=sorted(self._desk.kinds))
            gone += bite
            if bite < LIMIT:
                return gone, True
            if self._desk.over.is_set():
                break
        return gone, False
