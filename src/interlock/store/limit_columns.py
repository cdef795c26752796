"""Converts limits to the parameters of statements, and rows to limits, for both stores."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..core.ids import uuid7
from ..core.limits import Limit, Rate, Scope
from .flow_types import UNCHANGED, DeclaredLimit, LimitChange, LimitSeen, Operation

Row = Any
When = Callable[[Any], Any]
"""Reads a stored time, or nothing."""


def _columns(limit: Limit) -> dict[str, str | None]:
    """The values of a limit, as texts."""
    values: dict[str, float | None] = dict.fromkeys(("max_running", "rate_count", "rate_seconds", "burst"))
    values["max_running"] = limit.max_running
    if limit.bucket is not None:
        rate, burst = limit.bucket
        values |= {"rate_count": rate.count, "rate_seconds": rate.seconds, "burst": burst}
    return {name: None if value is None else str(value) for name, value in values.items()}


def declared_columns(declared: DeclaredLimit) -> dict[str, str | None]:
    """The parameters of `limits.declare`."""
    values = _columns(declared.limit)
    known = {name: json.loads(value) for name, value in values.items() if value is not None}
    return {"scope": declared.scope, "name": declared.name, "declared": json.dumps(known)} | values


def change_columns(scope: Scope, name: str, change: LimitChange, actor: str, reason: str | None) -> dict[str, Any]:
    """The parameters of `limits.change`. `UsageError` if a value is wrong."""
    limit = change.to_limit()
    shown: dict[str, Any] = {}
    if change.max_running is not UNCHANGED:
        shown["max_running"] = limit.max_running
    if change.rate is not UNCHANGED:
        shown |= {"rate": limit.rate, "burst": None if limit.bucket is None else limit.bucket[1]}
    return (
        operation_columns(scope, name, actor, reason)
        | _columns(limit)
        | {
            "sets_running": change.max_running is not UNCHANGED,
            "sets_rate": change.rate is not UNCHANGED,
            "detail": json.dumps(shown),
        }
    )


def operation_columns(scope: str, name: str, actor: str, reason: str | None) -> dict[str, Any]:
    """The parameters of a statement that adds an operation."""
    return {"id": uuid7(), "scope": scope, "name": name, "actor": actor, "reason": reason}


def _limit(max_running: int | None, count: float | None, seconds: float | None, burst: float | None) -> Limit:
    if count is None or seconds is None or burst is None:
        return Limit(max_running)
    return Limit(max_running, str(Rate(count, seconds)), int(burst))


def limit_seen(row: Row, when: When) -> LimitSeen:
    """A row of the query `limits.all`."""
    scope, name, max_running, count, seconds, burst, declared, changed_by, paused_at = row[:9]
    known: Mapping[str, Any] = json.loads(declared) if declared else {}
    return LimitSeen(
        scope,
        name,
        _limit(max_running, count, seconds, burst),
        None
        if declared is None
        else _limit(known.get("max_running"), known.get("rate_count"), known.get("rate_seconds"), known.get("burst")),
        changed_by,
        when(paused_at),
        row[9],
        row[10],
        row[11],
        row[12] or 0.0,
    )


def operation(row: Row, when: When) -> Operation:
    """A row of the query `operations`."""
    id, at, scope, name, event, actor, reason, detail = row
    return Operation(id, when(at), scope, name, event, actor, reason, json.loads(detail) if detail else None)
