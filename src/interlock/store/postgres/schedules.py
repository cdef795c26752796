"""Schedules on PostgreSQL."""

from datetime import datetime
from typing import Any

from .. import caller_connection
from ..commit_boundary import Run
from ..schedule_columns import (
    change_columns,
    declared_columns,
    facts_columns,
    schedule_operation,
    schedule_times,
    stored_schedule,
)
from ..schedule_types import Detail, ScheduleChange, ScheduleFacts, ScheduleTimes, StoredSchedule
from .session import PostgresSession, as_is


class PostgresSchedules:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    # ------------------------------------------------------------ read
    def times(self) -> list[ScheduleTimes]:
        return [schedule_times(row, as_is) for row in self._session.run_with_fixed_plan("schedules.times", {})]

    def all(self) -> list[StoredSchedule]:
        return [stored_schedule(row, as_is) for row in self._session.read("schedules.all", {})]

    def get(self, name: str) -> StoredSchedule | None:
        rows = self._session.read("schedules.get", {"name": name})
        return stored_schedule(rows[0], as_is) if rows else None

    # ------------------------------------------------------------ ticks and runs
    def lock(self, name: str, *, conn: object) -> StoredSchedule | None:
        rows = self._run(conn)(self._session.statement("schedules.lock", {"name": name}))
        return stored_schedule(rows[0], as_is) if rows else None

    def mark_tick(self, name: str, tick: datetime, *, conn: object) -> None:
        given = {"name": name, "tick": tick.isoformat()}
        self._run(conn)(self._session.statement("schedules.mark_tick", given, answers=False))

    def record_run(self, name: str, *, by: str, reason: str | None, detail: Detail, conn: object) -> None:
        given = schedule_operation(name, by, reason, detail) | {"event": "run"}
        self._run(conn)(self._session.statement("operations.add", given, answers=False))

    def _run(self, conn: object) -> Run:
        return caller_connection.runner_for(conn, self._session)

    # ------------------------------------------------------------ changes
    def declare(self, facts: ScheduleFacts) -> None:
        session = self._session
        session.check()
        statement = session.statement("schedules.declare", declared_columns(facts), answers=False)
        session.fixed.with_fixed_plans(session.fixed_plans, statement)

    def create(self, facts: ScheduleFacts, *, by: str, reason: str | None, detail: Detail) -> bool:
        return self._change("create", facts_columns(facts) | schedule_operation(facts.name, by, reason, detail))

    def change(self, name: str, change: ScheduleChange, *, by: str, reason: str | None, detail: Detail) -> bool:
        return self._change("change", change_columns(change) | schedule_operation(name, by, reason, detail))

    def reset(self, name: str, *, by: str, reason: str | None) -> bool:
        return self._change("reset", schedule_operation(name, by, reason))

    def pause(self, name: str, *, by: str, reason: str | None) -> bool:
        return self._change("pause", schedule_operation(name, by, reason))

    def resume(self, name: str, *, by: str, reason: str | None) -> bool:
        return self._change("resume", schedule_operation(name, by, reason))

    def delete(self, name: str, *, by: str, reason: str | None, detail: Detail) -> bool:
        return self._change("delete", schedule_operation(name, by, reason, detail))

    def _change(self, verb: str, given: dict[str, Any]) -> bool:
        """Wait for a tick that is being stored, then write the change.

        Returns whether there was something to change.
        """
        session = self._session
        session.check()
        lock = session.statement("schedules.lock", {"name": given["name"]})
        change = session.statement(f"schedules.{verb}", given)
        return bool(session.fixed.with_fixed_plans(session.fixed_plans, lock, change)[1])
