"""Converts schedules to the parameters of statements, and rows to schedules, for both stores."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .limit_columns import operation_columns
from .schedule_types import Detail, ScheduleChange, ScheduleFacts, ScheduleTimes, StoredSchedule

Row = Any
When = Callable[[Any], Any]
"""Reads a stored time."""


def facts_columns(facts: ScheduleFacts) -> dict[str, Any]:
    """The parameters of a statement that stores a schedule."""
    return asdict(facts)


def declared_columns(facts: ScheduleFacts) -> dict[str, Any]:
    """The parameters of `schedules.declare`."""
    columns = facts_columns(facts)
    # Payload and options stay texts in it, so that a reset restores every character.
    return columns | {"declared": json.dumps({name: value for name, value in columns.items() if name != "name"})}


def change_columns(change: ScheduleChange) -> dict[str, Any]:
    """The parameters of `schedules.change`, apart from those of its operation."""
    return asdict(change)


def schedule_operation(name: str, by: str, reason: str | None, detail: Detail | None = None) -> dict[str, Any]:
    """The parameters of the operation of a change."""
    given = operation_columns("schedule", name, by, reason)
    return given | {"detail": None if detail is None else json.dumps(detail, ensure_ascii=False)}


def schedule_times(row: Row, when: When) -> ScheduleTimes:
    """A row of the query `schedules.times`."""
    name, kind, cron, tz, declared, paused, changed_at, starts_at, last_tick = row
    done_until = max(each for each in (when(starts_at), when(last_tick)) if each is not None)
    return ScheduleTimes(name, kind, cron, tz, bool(declared), bool(paused), when(changed_at), done_until)


def stored_schedule(row: Row, when: When) -> StoredSchedule:
    """A row of the queries `schedules.all` and `schedules.get`."""
    declared, changed_by, changed_at, paused_at, paused_by, pause_reason, starts_at, last_tick = row[7:]
    return StoredSchedule(
        ScheduleFacts(*row[:7]),
        bool(declared),
        changed_by,
        when(changed_at),
        when(paused_at),
        paused_by,
        pause_reason,
        when(starts_at),
        when(last_tick),
    )
