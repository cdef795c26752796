"""Reads on PostgreSQL."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import psycopg

from ...core.ids import id_bounds
from ...core.job import AuditEntry, Execution, Job
from ...core.job_filter import JobFilter
from ...errors import NotFound
from .. import codec
from ..enqueue_plan import Statement
from ..report_types import Depth, Failures
from ..selection import EVERY_JOB, filter_columns
from ..types import JobRecord, MaintenanceDue
from . import columns
from .connection import Run, runner
from .session import PostgresSession, as_is

_FIRST = "00000000-0000-0000-0000-000000000000"


class PostgresInspect:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def now(self) -> datetime:
        now: datetime = self._session.read("now", {})[0][0]
        return now

    def uptime(self) -> float | None:
        up = float(self._session.read("uptime", {})[0][0])
        # If the clock was set back to before the server's start, the uptime is unknown.
        return up if up >= 0 else None

    def get(self, id: str) -> Job:
        rows = self._session.read("get", {"id": id}) if codec.is_id(id) else ()
        if not rows:
            raise NotFound(f"There is no job {id!r}.")
        return codec.job(rows[0], as_is)

    def find(self, prefix: str, limit: int) -> list[str]:
        bounds = id_bounds(prefix)
        given = {"first": bounds[0], "last": bounds[1], "limit": max(limit, 0)} if bounds else {}
        found = (
            (
                self._session.run_with_fixed_plan("find", given)
                or self._session.run_with_fixed_plan("find.pruned", given)
            )
            if given
            else ()
        )
        return [row[0] for row in found]

    def adjacent_ids(self, ids: Sequence[str]) -> dict[str, tuple[str | None, str | None]]:
        return {
            id: (before, after)
            for id, before, after in self._session.run_with_fixed_plan("adjacent_ids", {"ids": codec.array(ids)})
        }

    def jobs(
        self,
        *,
        matching: JobFilter = EVERY_JOB,
        limit: int = 100,
        after: str | None = None,
        payloads: bool = True,
    ) -> list[Job]:
        given = filter_columns(matching, datetime.isoformat) | {"limit": max(limit, 0), "after": after}
        return (
            [codec.job(row, as_is) for row in self._session.read("jobs" if payloads else "summaries", given)]
            if after is None or codec.is_id(after)
            else []
        )

    def executions(self, id: str) -> list[Execution]:
        return (
            [codec.execution(row, as_is) for row in self._session.read("executions", {"id": codec.array([id])})]
            if codec.is_id(id)
            else []
        )

    def history(self, id: str) -> list[AuditEntry]:
        return codec.audit(self._session.read("history", {"id": codec.array([id])}), as_is) if codec.is_id(id) else []

    def counts(self) -> dict[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        for lifecycle, state, count in self._session.read("counts", {}):
            counts.setdefault(lifecycle, {})[state] = count
        return counts

    def expired(self, kinds: Sequence[str], limit: int) -> list[Job]:
        self._session.check()
        given = {"kinds": columns.names(kinds), "limit": limit}
        rows = self._session.run_with_fixed_plan("expired", given) if kinds else ()
        return [codec.job(row, as_is) for row in rows]

    def maintenance_due(self, kinds: Sequence[str]) -> MaintenanceDue:
        self._session.check()
        (row,) = self._session.run_with_fixed_plan("maintenance_due", {"kinds": columns.names(kinds)})
        return MaintenanceDue(*row)

    def stuck(self, limit: int) -> list[Execution]:
        return [
            codec.execution(row, as_is) for row in self._session.read_with_fixed_plan("stuck", {"limit": max(limit, 0)})
        ]

    def depths(self) -> list[Depth]:
        return [Depth(*row) for row in self._session.read_with_fixed_plan("depths", {})]

    def held_jobs(self, places: Sequence[tuple[str, str]], limit: int) -> list[Job]:
        kinds, queues = (codec.text_array([place[part] for place in places]) for part in (0, 1))
        given = {"kinds": kinds, "queues": queues, "limit": max(limit, 0)}
        return [codec.job(row, as_is) for row in self._session.run_with_fixed_plan("held_jobs", given)]

    def recent_failures(self, age: float, newest: int) -> list[Failures]:
        return codec.failures(
            self._session.run_with_fixed_plan("recent_failures", {"age": age, "newest": newest}), as_is
        )

    def job_records(self, size: int = 1000) -> Iterator[list[JobRecord]]:
        self._session.check()
        for query in ("page", "page_pruned"):
            after = _FIRST
            while page := self._page(query, after, size):
                yield page
                after = page[-1].job_id

    def _page(self, query: str, after: str, size: int) -> list[JobRecord]:
        return self._session.pool.transact(lambda conn: self._read_page(conn, query, after, size))

    def _read_page(self, conn: psycopg.Connection[Any], query: str, after: str, size: int) -> list[JobRecord]:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        run = runner(conn)
        rows = run(Statement(self._session.queries[query], {"after": after, "limit": size}))
        ids = [str(row[0]) for row in rows]
        jobs = {str(row[0]): codec.job(row, as_is) for row in rows} if query == "page" else {}
        executions: dict[str, list[Execution]] = {id: [] for id in ids}
        for row in run(Statement(self._session.queries["page_executions"], {"id": codec.array(ids)})):
            executions[row[0]].append(codec.execution(row, as_is))
        histories = read_histories(run, self._session.queries["page_history"], ids)
        return [JobRecord(id, jobs.get(id), executions[id], histories[id]) for id in ids]


def read_histories(run: Run, sql: str, ids: Sequence[str]) -> dict[str, list[AuditEntry]]:
    """The audit of each job."""
    rows: dict[str, list[Sequence[Any]]] = {id: [] for id in ids}
    for row in run(Statement(sql, {"id": codec.array(ids)})):
        rows[row[0]].append(row)
    return {id: codec.audit(found, as_is) for id, found in rows.items()}
