"""The plain claim on PostgreSQL: its parameters, its rows, and where its walk over the ready jobs starts."""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ...core.job import Job
from ..codec import array, text_array, time_array
from ..enqueue_plan import Rows
from ..types import ClaimRule, Lease

LOOK_FROM_START_EVERY = 1.0
"""Seconds after which a claim walks from the first ready job again, whatever recent claims have seen."""
REMEMBER_AFTER = 1000
"""How many jobs are claimed within that time before their due times are worth remembering."""
DUE_AT = 13
"""The column of the due time in a row of `claim.plain`."""


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


_decoder = json.JSONDecoder()


def _read_json(text: str) -> Any:
    """`json.loads` without its checks, which take longer than a small payload. PostgreSQL stores only valid JSON."""
    return _decoder.raw_decode(text.lstrip())[0]


def read_lease(row: Any, rule: ClaimRule, by: str) -> Lease:
    """Return the lease of a row of `claim.plain`. The row has no column that the rule or the claim decides."""
    payload, tags, trace = row[9], row[10], row[11]
    job = Job(
        row[1],
        rule.kind,
        row[3],
        row[4],
        rule.lifecycle,
        rule.version,
        rule.target,
        "running",
        row[5],
        row[6],
        row[7],
        row[8],
        0,
        _read_json(payload),
        _read_json(tags) if tags else {},
        _read_json(trace) if trace else None,
        None,
        row[12],
        row[DUE_AT],
        None,
        row[14],
        row[15],
        row[16],
        None,
        row[17],
        row[18],
        row[19],
        None,
        None,
        None,
        None,
        None,
        row[20],
        row[21],
    )
    return Lease(job, 1, rule.status, by, rule.lease)
