"""Reads on SQLite."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from ...core.ids import id_bounds
from ...core.job import AuditEntry, Execution, Job
from ...core.job_filter import JobFilter
from ...errors import NotFound
from .. import codec
from ..commit_boundary import Run
from ..enqueue_plan import Statement
from ..report_types import Depth, Failures
from ..selection import EVERY_JOB, filter_columns
from ..types import JobRecord, MaintenanceDue
from . import rows
from .session import SqliteSession
from .timestamps import text_of, when


class SqliteInspect:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def now(self) -> datetime:
        self._session.check()
        return self._session.timestamp().at

    def uptime(self) -> float | None:
        return None

    def get(self, id: str) -> Job:
        found = self._session.read("get", {"id": id})
        if not found:
            raise NotFound(f"There is no job {id!r}.")
        return codec.job(found[0], when)

    def find(self, prefix: str, limit: int) -> list[str]:
        bounds = id_bounds(prefix)
        given = {"first": bounds[0], "last": bounds[1], "limit": max(limit, 0)} if bounds else {}
        found = (self._session.read("find", given) or self._session.read("find.pruned", given)) if given else ()
        return [row[0] for row in found]

    def adjacent_ids(self, ids: Sequence[str]) -> dict[str, tuple[str | None, str | None]]:
        return {
            id: (before, after) for id, before, after in self._session.read("adjacent_ids", {"ids": rows.array(ids)})
        }

    def jobs(
        self,
        *,
        matching: JobFilter = EVERY_JOB,
        limit: int = 100,
        after: str | None = None,
        payloads: bool = True,
    ) -> list[Job]:
        given = filter_columns(matching, text_of) | {"limit": max(limit, 0), "after": after}
        return (
            [codec.job(row, when) for row in self._session.read("jobs" if payloads else "summaries", given)]
            if after is None or codec.is_id(after)
            else []
        )

    def executions(self, id: str) -> list[Execution]:
        return [codec.execution(row, when) for row in self._session.read("executions", {"ids": rows.array([id])})]

    def history(self, id: str) -> list[AuditEntry]:
        return codec.audit(self._session.read("history", {"ids": rows.array([id])}), when)

    def counts(self) -> dict[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        for lifecycle, state, count in self._session.read("counts", {}):
            counts.setdefault(lifecycle, {})[state] = count
        return counts

    def expired(self, kinds: Sequence[str], limit: int) -> list[Job]:
        given = {"kinds": rows.array(sorted(set(kinds))), "now": self._session.timestamp().text, "limit": limit}
        return [codec.job(row, when) for row in self._session.read("expired", given)]

    def maintenance_due(self, kinds: Sequence[str]) -> MaintenanceDue:
        self._session.check()
        now = self._session.timestamp()
        given = {"kinds": rows.array(sorted(set(kinds))), "now": now.text}
        ((leases, jobs, flow),) = self._session.read("maintenance_due", given)
        return MaintenanceDue(now.at, bool(leases), bool(jobs), bool(flow))

    def stuck(self, limit: int) -> list[Execution]:
        now = self._session.timestamp()
        return [
            codec.execution(row, when)
            for row in self._session.read("stuck", {"now": now.text, "now_us": now.us, "limit": max(limit, 0)})
        ]

    def depths(self) -> list[Depth]:
        now = self._session.timestamp()
        return [
            Depth(kind, queue, due, later, held, running, (now.at - (when(since) or now.at)).total_seconds(), blocked)
            for kind, queue, due, later, held, running, since, blocked in self._session.read(
                "depths", {"now": now.text}
            )
        ]

    def held_jobs(self, places: Sequence[tuple[str, str]], limit: int) -> list[Job]:
        found = self._session.read("held_jobs", {"places": rows.array(list(places)), "limit": max(limit, 0)})
        return [codec.job(row, when) for row in found]

    def recent_failures(self, age: float, newest: int) -> list[Failures]:
        return codec.failures(
            self._session.read("recent_failures", {"since": self._session.timestamp().plus(-age), "newest": newest}),
            when,
        )

    def job_records(self, size: int = 1000) -> Iterator[list[JobRecord]]:
        self._session.check()
        for query in ("page", "page_pruned"):
            after = ""
            while page := self._session.file.snapshot(partial(self._page, query=query, after=after, size=size)):
                yield page
                after = page[-1].job_id

    def _page(self, run: Run, *, query: str, after: str, size: int) -> list[JobRecord]:
        found = run(Statement(self._session.queries[query], {"after": after, "limit": size}))
        ids: list[str] = [row[0] for row in found]
        jobs = {row[0]: codec.job(row, when) for row in found} if query == "page" else {}
        executions: dict[str, list[Execution]] = {id: [] for id in ids}
        for row in run(Statement(self._session.queries["page_executions"], {"ids": rows.array(ids)})):
            executions[row[0]].append(codec.execution(row, when))
        histories = read_histories(run, self._session.queries["page_history"], ids)
        return [JobRecord(id, jobs.get(id), executions[id], histories[id]) for id in ids]


def read_histories(run: Run, sql: str, ids: Sequence[str]) -> dict[str, list[AuditEntry]]:
    """The audit of each job."""
    entries: dict[str, list[Sequence[Any]]] = {id: [] for id in ids}
    for row in run(Statement(sql, {"ids": rows.array(ids)})):
        entries[row[0]].append(row)
    return {id: codec.audit(found, when) for id, found in entries.items()}
