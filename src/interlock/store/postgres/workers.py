"""Workers and schedules on PostgreSQL."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import psycopg

from ...records import ScheduleFacts, WorkerFacts, WorkerSeen
from .. import codec
from ..enqueue import Rows, Statement
from .pool import Pool, execute, runner
from .settle import as_is


class Workers:
    """The part of the store that knows who works, and what comes round. It needs `queries`, `pool` and `check`."""

    queries: dict[str, str]
    pool: Pool
    renewing: Pool
    _ask: Callable[[str, dict[str, Any]], Rows]

    def check(self) -> None:
        raise NotImplementedError

    def report_worker(self, worker: WorkerFacts) -> None:
        self.check()
        given = codec.worker_columns(worker)
        self.renewing.transact(lambda conn: execute(conn, self.queries["report_worker"], given))

    def remove_worker(self, name: str) -> None:
        self._changed("remove_worker", {"name": name})

    def workers(self) -> list[WorkerSeen]:
        return [codec.worker(row, as_is, silent=row[10]) for row in self._ask("workers", {})]

    def forget_workers(self, silent: float) -> int:
        return self._changed("forget_workers", {"silent": silent})

    def schedule(self, facts: ScheduleFacts) -> datetime | None:
        self.check()
        given = codec.schedule_columns(facts)

        def work(conn: psycopg.Connection[Any]) -> datetime | None:
            run = runner(conn)
            run(Statement(self.queries["schedule"], given, answers=False))
            kept = run(Statement(self.queries["schedule.kept"], given))
            return kept[0][0] if kept else None

        return self.pool.transact(work)

    def ticked(self, name: str, tick: datetime) -> None:
        self._changed("ticked", {"name": name, "tick": tick})

    def report_outside(self, kind: str, error: str | None) -> None:
        self._changed("report_outside", {"kind": kind, "error": error})

    def _changed(self, query: str, params: dict[str, Any]) -> int:
        """How many rows a statement changed."""
        self.check()
        return self.pool.transact(lambda conn: execute(conn, self.queries[query], params).rowcount)
