"""Rows of claimed jobs, on PostgreSQL."""

import json
from collections.abc import Sequence
from typing import Any

from ...core.job import Job
from ..enqueue_plan import Rows
from ..types import ClaimRule, Lease

DUE_AT = 13
"""The column of the due time."""

_decoder = json.JSONDecoder()


def _read_json(text: str) -> Any:
    """`json.loads` without its checks, which take longer than a small payload. PostgreSQL stores only valid JSON."""
    return _decoder.raw_decode(text.lstrip())[0]


def read_leases(rows: Rows, rules: Sequence[ClaimRule], by: str) -> list[Lease]:
    """Return the leases of a claim's rows. Their first column is no part of the lease."""
    return [_read_lease(row, rules[int(row[2]) - 1], by) for row in rows if row[1] is not None]


def _read_lease(row: Any, rule: ClaimRule, by: str) -> Lease:
    """Return the lease of a row, which has no column that the rule or the claim decides."""
    payload, tags, trace = row[9], row[10], row[11]
    lease_losses, expires_at, concurrency_key = row[23:] or (0, None, None)
    job = Job(
        row[1], rule.kind, row[3], row[4], rule.lifecycle, rule.version, rule.target, "running",
        row[5], row[6], row[7], row[8], lease_losses,
        _read_json(payload), _read_json(tags) if tags else {}, _read_json(trace) if trace else None,
        None, row[12], row[DUE_AT], expires_at, row[14], row[15], row[16], None, row[17], row[18], row[19],
        None, None, None, None, None, row[20], row[21], concurrency_key=concurrency_key, batch=row[22],
    )  # fmt: skip
    return Lease(job, 1, rule.status, by, rule.lease)


def jobs_without_transition(rows: Rows, rules: Sequence[ClaimRule]) -> list[str]:
    """Return the ids of the claimed jobs whose rule makes no transition."""
    return [row[1] for row in rows if row[1] is not None and not rules[int(row[2]) - 1].path]
