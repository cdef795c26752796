"""Workers and schedules on PostgreSQL."""

from datetime import datetime
from typing import Any

import psycopg

from .. import codec
from ..types import ScheduleFacts, WorkerFacts, WorkerSeen
from .connection import runner
from .session import PostgresSession, as_is


class PostgresWorkers:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def report(self, worker: WorkerFacts) -> None:
        session = self._session
        session.check()
        given = codec.worker_columns(worker)
        statement = session.statement("report_worker", given, answers=False)
        session.renewing.with_fixed_plans(session.fixed_plans, statement)

    def remove(self, name: str) -> None:
        self._session.count_changed("remove_worker", {"name": name})

    def all(self) -> list[WorkerSeen]:
        return [codec.worker(row, as_is, silent=row[10]) for row in self._session.read("workers", {})]

    def forget(self, silent: float) -> int:
        return self._session.count_changed("forget_workers", {"silent": silent})


class PostgresSchedules:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def save(self, facts: ScheduleFacts) -> datetime | None:
        session = self._session
        session.check()
        given = codec.schedule_columns(facts)

        def work(conn: psycopg.Connection[Any]) -> datetime | None:
            run = runner(conn)
            run(session.statement("save_schedule", given, answers=False))
            stored = run(session.statement("save_schedule.stored", given))
            return stored[0][0] if stored else None

        return session.pool.transact(work)

    def mark_tick(self, name: str, tick: datetime) -> None:
        self._session.count_changed("mark_tick", {"name": name, "tick": tick})
