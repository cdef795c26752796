"""Reading on PostgreSQL."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg

from ...errors import NotFound
from ...ids import id_bounds
from ...job import AuditEntry, Execution, Job
from ...lifecycle import Lifecycle
from ...records import Depth, Dossier, Failures, KindFacts, Outside
from .. import codec
from ..enqueue import Rows, Statement
from ..registry import Registry
from . import columns
from .pool import Pool, Run, execute, runner
from .settle import as_is

_FIRST = "00000000-0000-0000-0000-000000000000"


class Reading:
    """The half of the store that reads. It needs `queries` and `pool`."""

    queries: dict[str, str]
    pool: Pool
    registry: Registry

    def check(self) -> None:
        raise NotImplementedError

    def _reading(self) -> Run | None:
        raise NotImplementedError

    def now(self) -> datetime:
        now: datetime = self._ask("now", {})[0][0]
        return now

    def up_for(self) -> float | None:
        up = float(self._ask("up_for", {})[0][0])
        # If the clock was set back to before the server's start, the uptime is unknown.
        return up if up >= 0 else None

    def get(self, id: str) -> Job:
        rows = self._ask("get", {"id": id}) if codec.is_id(id) else ()
        if not rows:
            raise NotFound(f"there is no job {id!r}")
        return codec.job(rows[0], as_is)

    def find(self, prefix: str, limit: int) -> list[str]:
        bounds = id_bounds(prefix)
        given = {"first": bounds[0], "last": bounds[1], "limit": max(limit, 0)} if bounds else {}
        found = (self._steadily("find", given) or self._steadily("find.pruned", given)) if given else ()
        return [row[0] for row in found]

    def neighbours(self, ids: Sequence[str]) -> dict[str, tuple[str | None, str | None]]:
        return {id: (before, after) for id, before, after in self._steadily("neighbours", {"ids": codec.array(ids)})}

    def jobs(self, *, kind: str | None = None, state: str | None = None, phase: str | None = None, queue: str | None = None,
             tags: Mapping[str, str] | None = None, limit: int = 100, after: str | None = None, payloads: bool = True) -> list[Job]:
        given = {"kind": kind, "state": state, "phase": phase, "queue": queue, "tags": codec.tags(tags), "limit": max(limit, 0), "after": after}
        return [codec.job(row, as_is) for row in self._ask("jobs" if payloads else "summaries", given)] if after is None or codec.is_id(after) else []

    def executions(self, id: str) -> list[Execution]:
        return [codec.execution(row, as_is) for row in self._ask("executions", {"id": codec.array([id])})] if codec.is_id(id) else []

    def history(self, id: str) -> list[AuditEntry]:
        return codec.audit(self._ask("history", {"id": codec.array([id])}), as_is) if codec.is_id(id) else []

    def counts(self) -> dict[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        for lifecycle, state, count in self._ask("counts", {}):
            counts.setdefault(lifecycle, {})[state] = count
        return counts

    def expired(self, kinds: Sequence[str], limit: int) -> list[Job]:
        self.check()
        steady = self.queries["steady"]
        rows = self.pool.steadily(steady, Statement(self.queries["expired"], {"kinds": columns.names(kinds), "limit": limit}))[0] if kinds else ()
        return [codec.job(row, as_is) for row in rows]

    def stuck(self, limit: int) -> list[Execution]:
        return [codec.execution(row, as_is) for row in self._ask_steadily("stuck", {"limit": max(limit, 0)})]

    def depths(self) -> list[Depth]:
        return [Depth(*row) for row in self._ask_steadily("depths", {})]

    def held(self, places: Sequence[tuple[str, str]], limit: int) -> list[Job]:
        kinds, queues = (codec.text_array([place[part] for place in places]) for part in (0, 1))
        given = {"kinds": kinds, "queues": queues, "limit": max(limit, 0)}
        return [codec.job(row, as_is) for row in self._steadily("held", given)]

    def failures(self, age: float, newest: int) -> list[Failures]:
        return codec.failures(self._steadily("failures", {"age": age, "newest": newest}), as_is)

    def handed(self, kind: str, external_id: str) -> int:
        return int(self._ask("handed", {"kind": kind, "external_id": external_id})[0][0])

    def outside(self) -> list[Outside]:
        return [Outside(*row) for row in self._ask_steadily("outside", {})]

    def kind(self, name: str) -> KindFacts | None:
        rows = self._ask("kind", {"name": name})
        return codec.kind(rows[0]) if rows else None

    def version_of(self, lifecycle: Lifecycle) -> int:
        return self.registry.version_of(lifecycle)

    def lifecycle(self, name: str, version: int) -> Lifecycle:
        return self.registry.lifecycle(name, version)

    def dossiers(self, size: int = 1000) -> Iterator[list[Dossier]]:
        self.check()
        for query in ("page", "page_pruned"):
            after = _FIRST
            while page := self._page(query, after, size):
                yield page
                after = page[-1].job_id

    def _page(self, query: str, after: str, size: int) -> list[Dossier]:
        return self.pool.transact(lambda conn: self._read_page(conn, query, after, size))

    def _read_page(self, conn: psycopg.Connection[Any], query: str, after: str, size: int) -> list[Dossier]:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        run = runner(conn)
        rows = run(Statement(self.queries[query], {"after": after, "limit": size}))
        ids = [str(row[0]) for row in rows]
        jobs = {str(row[0]): codec.job(row, as_is) for row in rows} if query == "page" else {}
        executions: dict[str, list[Execution]] = {id: [] for id in ids}
        for row in run(Statement(self.queries["page_executions"], {"id": codec.array(ids)})):
            executions[row[0]].append(codec.execution(row, as_is))
        histories = self._histories(run, ids, "page_history")
        return [Dossier(id, jobs.get(id), executions[id], histories[id]) for id in ids]

    def _histories(self, run: Run, ids: Sequence[str], query: str = "history") -> dict[str, list[AuditEntry]]:
        rows: dict[str, list[Sequence[Any]]] = {id: [] for id in ids}
        for row in run(Statement(self.queries[query], {"id": codec.array(ids)})):
            rows[row[0]].append(row)
        return {id: codec.audit(found, as_is) for id, found in rows.items()}

    def _ask(self, query: str, params: dict[str, Any]) -> Rows:
        self.check()
        statement = Statement(self.queries[query], params)
        joined = self._reading()
        return self.pool.transact(lambda conn: runner(conn)(statement)) if joined is None else joined(statement)

    def _ask_steadily(self, query: str, params: dict[str, Any]) -> Rows:
        """`_ask` with a fixed query plan."""
        self.check()
        statement = Statement(self.queries[query], params)
        joined = self._reading()
        return self.pool.steadily(self.queries["steady"], statement)[0] if joined is None else joined(statement)

    def _steadily(self, query: str, params: dict[str, Any]) -> Rows:
        self.check()
        return self.pool.steadily(self.queries["steady"], Statement(self.queries[query], params))[0]

    def _count(self, conn: psycopg.Connection[Any], query: str, params: dict[str, Any]) -> int:
        return execute(conn, self.queries[query], params).rowcount
