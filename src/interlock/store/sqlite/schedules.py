"""Schedules on SQLite."""

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
from .file import runner
from .session import SqliteSession
from .timestamps import text_of, when


class SqliteSchedules:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    # ------------------------------------------------------------ read
    def times(self) -> list[ScheduleTimes]:
        return [schedule_times(row, when) for row in self._session.read("schedules.times", {})]

    def all(self) -> list[StoredSchedule]:
        return [stored_schedule(row, when) for row in self._session.read("schedules.all", {})]

    def get(self, name: str) -> StoredSchedule | None:
        rows = self._session.read("schedules.get", {"name": name})
        return stored_schedule(rows[0], when) if rows else None

    # ------------------------------------------------------------ ticks and runs
    def lock(self, name: str, *, conn: object) -> StoredSchedule | None:
        run, statement = self._run(conn), self._session.statement
        run(statement("schedules.lock", {"name": name}, answers=False))
        rows = run(statement("schedules.get", {"name": name}))
        return stored_schedule(rows[0], when) if rows else None

    def mark_tick(self, name: str, tick: datetime, *, conn: object) -> None:
        given = {"name": name, "tick": text_of(tick)}
        self._run(conn)(self._session.statement("schedules.mark_tick", given, answers=False))

    def record_run(self, name: str, *, by: str, reason: str | None, detail: Detail, conn: object) -> None:
        given = schedule_operation(name, by, reason, detail) | {"event": "run", "now": self._session.timestamp().text}
        self._run(conn)(self._session.statement("operations.add", given, answers=False))

    def _run(self, conn: object) -> Run:
        return caller_connection.runner_for(conn, self._session)

    # ------------------------------------------------------------ changes
    def declare(self, facts: ScheduleFacts) -> None:
        session = self._session
        session.check()
        given = declared_columns(facts)
        if session.read_own("schedules.declare.unchanged", given):
            return
        with session.file.write() as conn:
            given["now"] = session.timestamp().text
            runner(conn)(session.statement("schedules.declare", given, answers=False))

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
        """Write a change with its operation. Returns whether there was something to change."""
        session = self._session
        session.check()
        with session.file.write() as conn:
            run, all_given = runner(conn), given | {"event": verb, "now": session.timestamp().text}
            if not run(session.statement(f"schedules.{verb}", all_given)):
                return False
            run(session.statement("operations.add", all_given, answers=False))
            return True
