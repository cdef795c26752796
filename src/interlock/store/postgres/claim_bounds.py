"""Where the plain claim on PostgreSQL starts to walk over the ready jobs."""

import time
from collections.abc import Sequence
from datetime import datetime

from ..codec import array, text_array, time_array
from ..enqueue_plan import Rows
from ..types import ClaimRule
from .claimed_rows import DUE_AT

LOOK_FROM_START_EVERY = 1.0
"""Seconds after which a claim walks from the first ready job again, whatever recent claims have seen."""
REMEMBER_AFTER = 1000
"""How many jobs are claimed within that time before their due times are worth remembering."""


class ClaimBounds:
    """The due time at which the next claim of a queue and kind starts to look for jobs of the priority claimed last.

    PostgreSQL visits the index entries of claimed jobs until the next vacuum, so a long drain would become slower with
    each claim. A job that appears below the bound waits until a claim walks from the start again.
    """

    def __init__(self) -> None:
        self._bounds: dict[tuple[str, str], tuple[int, datetime]] = {}
        self._claimed = 0
        self._looked_at = 0.0

    def parameters(self, kinds: set[str], queues: set[str]) -> dict[str, str]:
        """Return the bounds for the next claim of these kinds and queues, as parameters of `claim.plain`."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_FROM_START_EVERY:
            self._forget(now)
        found = [
            (*pair, *bound) for pair, bound in list(self._bounds.items()) if pair[0] in queues and pair[1] in kinds
        ]
        return {
            "bound_queue": text_array([bound[0] for bound in found]),
            "bound_kind": text_array([bound[1] for bound in found]),
            "bound_priority": array([bound[2] for bound in found]),
            "bound_due_at": time_array([bound[3] for bound in found]),
        }

    def learn(self, rows: Rows, rules: Sequence[ClaimRule], limit: int) -> None:
        """Remember where a claim that found enough jobs ended. After any other claim, look from the start."""
        self._claimed += len(rows)
        if len(rows) < limit:
            self._forget(self._looked_at)
        elif self._claimed > REMEMBER_AFTER:
            for row in rows:
                self._remember((row[3], rules[int(row[2]) - 1].kind), row[4], row[DUE_AT])

    def _remember(self, pair: tuple[str, str], priority: int, due_at: datetime) -> None:
        known = self._bounds.get(pair)
        if known is None or priority < known[0] or (priority == known[0] and due_at > known[1]):
            self._bounds[pair] = priority, due_at

    def _forget(self, looked_at: float) -> None:
        self._bounds.clear()
        self._claimed, self._looked_at = 0, looked_at
