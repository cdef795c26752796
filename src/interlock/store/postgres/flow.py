"""Batches and dependencies on PostgreSQL."""

import logging
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import Connection

from ...core.blocked_jobs import Blocked
from ...core.job import Job
from ...errors import NotFound, Unavailable
from ..codec import array, is_id, text_array
from ..codec import job as job_of
from ..dependents import ACTOR, ROUNDS, EndedDependency, resolve_some
from ..enqueue_plan import Rows
from ..flow_types import BatchProgress, Need
from . import columns
from .connection import Run, runner
from .session import PostgresSession, as_is

_log = logging.getLogger("interlock")


class PostgresFlow:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def resolve(self) -> None:
        self._session.check()
        for _ in range(ROUNDS):
            if not self._session.pool.transact(self._resolve):
                return

    def resolve_ended(self) -> None:
        """`resolve` after jobs have ended. If the database fails now, the next claim of any worker does it."""
        try:
            self.resolve()
        except (psycopg.Error, Unavailable) as error:
            _log.warning(
                "Jobs have ended, but their dependents could not be checked: %s. The next claim checks them.",
                error,
            )

    def _resolve(self, conn: Connection[Any]) -> bool:
        run = runner(conn)
        run(self._session.statement("fixed_plans", {"local": True}))
        return resolve_some(PostgresFlowQueries(self._session, run))

    # ------------------------------------------------------------ read
    def to_cancel(self, kinds: Sequence[str], limit: int) -> list[Job]:
        self._session.check()
        given = {"kinds": columns.names(kinds), "limit": limit}
        return [job_of(row, as_is) for row in self._session.run_with_fixed_plan("flow.to_cancel", given)]

    def reopenable(self, ids: Sequence[str]) -> list[Job]:
        found = self._session.read("reopenable", {"ids": array(ids), "actor": ACTOR})
        return [job_of(row, as_is) for row in found]

    def needs(self, job_id: str, limit: int) -> list[Need]:
        rows = self._session.read("flow.needs", {"id": job_id, "limit": limit}) if is_id(job_id) else ()
        return [Need(*row) for row in rows]

    def count_needs(self, job_id: str) -> tuple[int, int]:
        rows = self._session.read("flow.count_needs", {"id": job_id}) if is_id(job_id) else ((0, 0),)
        return rows[0][0], rows[0][1]

    def results(self, job_id: str, kind: str) -> list[str | None]:
        rows = self._session.read("flow.results", {"id": job_id, "kind": kind}) if is_id(job_id) else ()
        return [row[0] for row in rows]

    def batch(self, id: str) -> BatchProgress:
        rows = self._session.read("flow.batch", {"id": id}) if is_id(id) else ()
        if not rows:
            raise NotFound(f"There is no batch {id!r}.")
        return BatchProgress(*rows[0])

    def batches(self, *, parent: str | None = None, limit: int = 100, after: str | None = None) -> list[BatchProgress]:
        if not all(id is None or is_id(id) for id in (parent, after)):
            return []
        given = {"parent": parent, "limit": max(limit, 0), "after": after}
        return [BatchProgress(*row) for row in self._session.read("flow.batches", given)]

    def members(
        self,
        id: str,
        *,
        phase: str | None = None,
        limit: int = 100,
        after: str | None = None,
        redriven: bool = True,
    ) -> list[Job]:
        if not is_id(id) or not (after is None or is_id(after)):
            return []
        given = {"id": id, "phase": phase, "limit": max(limit, 0), "after": after, "redriven": redriven}
        return [job_of(row, as_is) for row in self._session.read("flow.members", given)]


def _columns(edges: Sequence[EndedDependency]) -> dict[str, str]:
    return {"job_id": array(each.job_id for each in edges), "needs": array(each.needs for each in edges)}


class PostgresFlowQueries:
    """The statements that resolve dependencies, in one transaction."""

    def __init__(self, session: PostgresSession, run: Run) -> None:
        self._session = session
        self._do = run

    def take(self, limit: int) -> list[tuple[str, str]]:
        return [(step, id) for step, id in self._run("flow.take", {"limit": limit})]

    def add(self, step: str, ids: Sequence[str], wait: float) -> None:
        self._run("flow.add", {"step": step, "id": array(ids), "wait": wait}, answers=False)

    def await_needs(self, ids: Sequence[str]) -> list[str]:
        return [row[0] for row in self._run("flow.await", {"id": array(ids)})]

    def follow(self, ids: Sequence[str]) -> list[str]:
        return [row[0] for row in self._run("flow.follow", {"id": array(ids)})]

    def outcomes(self, ended: Sequence[str], arrived: Sequence[str]) -> list[EndedDependency]:
        return [
            EndedDependency(*row)
            for row in self._run("flow.outcomes", {"ended": array(ended), "arrived": array(arrived)})
        ]

    def lock_edges(self, edges: Sequence[EndedDependency]) -> list[str]:
        given = _columns(edges) | {
            "is_batch": array(each.is_batch for each in edges),
            "outcome": array(each.outcome for each in edges),
        }
        return [row[0] for row in self._run("flow.lock_edges", given)]

    def mark(self, edges: Sequence[EndedDependency]) -> None:
        self._run("flow.mark", _columns(edges), answers=False)

    def lock(self, ids: Sequence[str]) -> list[str]:
        return [row[0] for row in self._run("flow.lock", {"id": array(ids)})]

    def blocked(self, ids: Sequence[str]) -> list[Blocked]:
        return [Blocked(*row) for row in self._run("flow.blocked", {"id": array(ids)})]

    def apply(self, blocked: Sequence[Blocked]) -> None:
        given = {
            "id": array(each.job_id for each in blocked),
            "decision": text_array(each.decision for each in blocked),
            "reason": text_array(each.reason for each in blocked),
            "actor": ACTOR,
        }
        self._run("flow.apply", given)

    def _run(self, query: str, given: dict[str, Any], *, answers: bool = True) -> Rows:
        return self._do(self._session.statement(query, given, answers=answers))
