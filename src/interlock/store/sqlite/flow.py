"""Batches and dependencies on SQLite."""

import logging
from collections.abc import Sequence
from typing import Any

from ...core.blocked_jobs import Blocked
from ...core.job import Job
from ...errors import NotFound, Unavailable
from ..codec import job as job_of
from ..commit_boundary import Run
from ..dependents import ACTOR, ROUNDS, EndedDependency, resolve_some
from ..flow_types import BatchProgress, Need
from . import rows
from .file import runner
from .session import SqliteSession
from .timestamps import Timestamp, when

ALWAYS_DUE = "1970-01-01T00:00:00.000000Z"
"""The time of a check that is due at once, whatever the clock says."""
_log = logging.getLogger("interlock")


class SqliteFlow:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def resolve(self) -> None:
        session = self._session
        session.check()
        with session.file.write() as conn:
            self.resolve_in(runner(conn), session.timestamp())

    def resolve_in(self, run: Run, now: Timestamp) -> None:
        """`resolve` in a transaction of the store. There is one writer, so its statements see every other end."""
        for _ in range(ROUNDS):
            if not resolve_some(SqliteFlowQueries(self._session, run, now)):
                return

    def resolve_ended(self) -> None:
        """`resolve` after jobs have ended. If the file cannot be written now, the next claim of any worker does it."""
        try:
            self.resolve()
        except (self._session.file.library.module.Error, Unavailable) as error:
            _log.warning(
                "Jobs have ended, but their dependents could not be checked: %s. The next claim checks them.",
                error,
            )

    # ------------------------------------------------------------ read
    def to_cancel(self, kinds: Sequence[str], limit: int) -> list[Job]:
        self._session.check()
        given = {"kinds": rows.array(kinds), "limit": limit}
        return [job_of(row, when) for row in self._session.read_own("flow.to_cancel", given)]

    def reopenable(self, ids: Sequence[str]) -> list[Job]:
        found = self._session.read("reopenable", {"ids": rows.array(ids), "actor": ACTOR})
        return [job_of(row, when) for row in found]

    def needs(self, job_id: str, limit: int) -> list[Need]:
        found = self._session.read("flow.needs", {"id": job_id, "limit": limit})
        return [Need(row[0], bool(row[1]), *row[2:]) for row in found]

    def count_needs(self, job_id: str) -> tuple[int, int]:
        open, total = self._session.read("flow.count_needs", {"id": job_id})[0]
        return open, total

    def results(self, job_id: str, kind: str) -> list[str | None]:
        return [row[0] for row in self._session.read("flow.results", {"id": job_id, "kind": kind})]

    def batch(self, id: str) -> BatchProgress:
        found = self._session.read("flow.batch", {"id": id})
        if not found:
            raise NotFound(f"There is no batch {id!r}.")
        return _batch(found[0])

    def batches(self, *, parent: str | None = None, limit: int = 100, after: str | None = None) -> list[BatchProgress]:
        given = {"parent": parent, "limit": max(limit, 0), "after": after}
        return [_batch(row) for row in self._session.read("flow.batches", given)]

    def members(
        self,
        id: str,
        *,
        phase: str | None = None,
        limit: int = 100,
        after: str | None = None,
        redriven: bool = True,
    ) -> list[Job]:
        given = {"id": id, "phase": phase, "limit": max(limit, 0), "after": after, "redriven": redriven}
        return [job_of(row, when) for row in self._session.read("flow.members", given)]


def _batch(row: Sequence[Any]) -> BatchProgress:
    fields: list[Any] = [*row[:3], when(row[3]), *row[4:]]
    return BatchProgress(*fields)


class SqliteFlowQueries:
    """The statements that resolve dependencies, in one transaction."""

    def __init__(self, session: SqliteSession, run: Run, now: Timestamp) -> None:
        self._session = session
        self._do = run
        self._now = now

    def take(self, limit: int) -> list[tuple[str, str]]:
        return [(step, id) for step, id in self._run("flow.take", {"limit": limit})]

    def add(self, step: str, ids: Sequence[str], wait: float) -> None:
        at = self._now.plus(wait) if wait > 0 else ALWAYS_DUE
        self._run("flow.add", {"step": step, "ids": rows.array(ids), "at": at}, answers=False)

    def await_needs(self, ids: Sequence[str]) -> list[str]:
        self._run("flow.await", {"ids": rows.array(ids)}, answers=False)
        return []

    def follow(self, ids: Sequence[str]) -> list[str]:
        return sorted({row[0] for row in self._run("flow.follow", {"ids": rows.array(ids)})})

    def outcomes(self, ended: Sequence[str], arrived: Sequence[str]) -> list[EndedDependency]:
        given = {"ended": rows.array(ended), "arrived": rows.array(arrived)}
        return [EndedDependency(row[0], row[1], bool(row[2]), row[3]) for row in self._run("flow.outcomes", given)]

    def lock_edges(self, edges: Sequence[EndedDependency]) -> list[str]:
        del edges  # one writer: no other transaction has locked a row
        return []

    def mark(self, edges: Sequence[EndedDependency]) -> None:
        given = {"edges": rows.array((each.job_id, each.needs, each.outcome) for each in edges)}
        self._run("flow.mark", given, answers=False)

    def lock(self, ids: Sequence[str]) -> list[str]:
        del ids  # one writer: no other transaction has locked a row
        return []

    def blocked(self, ids: Sequence[str]) -> list[Blocked]:
        return [Blocked(*row) for row in self._run("flow.blocked", {"ids": rows.array(ids)})]

    def apply(self, blocked: Sequence[Blocked]) -> None:
        events = {"run": "unblock", "hold": "hold", "cancel": "cancel_requested"}
        for each in blocked:
            given = {"id": each.job_id, "decision": each.decision, "reason": each.reason, "actor": ACTOR}
            self._run("flow.apply", given, answers=False)
            note = {"ids": rows.array([each.job_id]), "attempt": None, "event": events[each.decision]}
            self._run("add_note", given | note, answers=False)

    def _run(self, query: str, given: dict[str, Any], *, answers: bool = True) -> Sequence[Any]:
        return self._do(self._session.statement(query, given | {"now": self._now.text}, answers=answers))
