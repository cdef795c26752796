"""Decides how many jobs a worker claims in advance, so that its handlers need not wait for the database."""

import math
from collections.abc import Iterable

from ..jobs.spec import KindSpec

HORIZON = 0.1
"""Seconds within which a job that was claimed in advance should start. Another worker could start it at once."""
LEASE_SHARE = 50
"""The horizon is at most the shortest lease divided by this number."""
MOST_PREFETCHED = 1000
"""The most jobs that are claimed in advance. If the worker dies, each of them loses a try."""


class Prefetch:
    """Computes the number of jobs from recent handlers: as many as ended within the horizon, if they were short."""

    def __init__(self, lease: float, *, allowed: bool) -> None:
        """`lease` is the shortest lease of the worker. Nothing is claimed in advance unless that is `allowed`."""
        self._limit = MOST_PREFETCHED if allowed else 0
        self._horizon = min(HORIZON, lease / LEASE_SHARE)
        self.suspend()

    def suspend(self) -> None:
        """Claim nothing in advance until handlers have ended again, because jobs had to wait for too long."""
        self._mean = math.inf
        self._since, self._ended, self._ended_before = -math.inf, 0, 0
        """When the present horizon began, and how many handlers ended in it and in the one before."""
        self.most = 0
        """How many executions may wait for a slot."""

    def handlers_ended(self, count: int, seconds: float, now: float) -> None:
        """Take into account handlers that ended now, after this many seconds in all."""
        mean = max(seconds / count, 1e-9)
        # Longer handlers count at once, and shorter ones gradually.
        self._mean = mean if mean > self._mean or self._mean == math.inf else (self._mean + mean) / 2
        if now - self._since >= self._horizon:
            self._ended_before = self._ended if now - self._since < 2 * self._horizon else 0
            self._ended, self._since = 0, now
        self._ended += count
        # Slots that long handlers occupy start no other job, so the number of slots would promise too much.
        self.most = min(self._limit, max(self._ended, self._ended_before)) if self._mean <= self._horizon else 0


def death_costs_only_a_try(kinds: Iterable[KindSpec]) -> bool:
    """Whether the death of a worker takes a try from its jobs, but neither fails nor holds one that has not run."""
    return all(kind.tries > 1 and kind.on_lost_lease == "rerun" for kind in kinds)
