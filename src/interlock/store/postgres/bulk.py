"""Operations on many jobs on PostgreSQL."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import psycopg

from ...core.driver import drive
from ...core.job import Job
from .. import caller_enqueue, codec
from ..enqueue_plan import Rows
from ..redrive_plan import redriving
from ..selection import Counted, Redriven, SelectedJob, Selection, counted, selection_columns
from ..tx import PlainTx
from ..types import NewJob
from .connection import runner
from .session import PostgresSession, as_is


class PostgresBulk:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def count(self, selection: Selection) -> Counted:
        query = "count_live" if selection.is_live else "count_ended"
        return counted(self._session.read(query, columns(selection)), as_is)

    def page(self, selection: Selection, start: str, last: str, limit: int) -> list[SelectedJob]:
        session = self._session
        session.check()
        given = columns(selection) | {"start": start, "last": last, "limit": max(limit, 0)}

        def work(conn: psycopg.Connection[Any]) -> Rows:
            run = runner(conn)
            run(session.statement("walk_plans", {}))
            return run(session.statement("page_selected", given))

        rows = session.pool.transact(work)
        return [SelectedJob(codec.job(row[: codec.JOB_WIDTH], as_is), row[codec.JOB_WIDTH]) for row in rows]

    def get(self, ids: Sequence[str]) -> list[Job]:
        asked = codec.array(id for id in ids if codec.is_id(id))
        return [codec.job(row, as_is) for row in self._session.run_with_fixed_plan("jobs_by_id", {"ids": asked})]

    def redrive(
        self,
        jobs: Sequence[NewJob],
        *,
        again: bool,
        reason: str | None,
        conn: object | None = None,
        admit: Callable[[Any, NewJob], None] | None = None,
    ) -> list[Redriven]:
        session = self._session
        session.check()
        if conn is not None:
            return caller_enqueue.redrive(session, conn, jobs, admit, again=again, reason=reason)

        def work(own: psycopg.Connection[Any]) -> list[Redriven]:
            run = runner(own)
            if admit is None:
                run(session.statement("fixed_plans", {"local": True}))
            admitted = caller_enqueue.admitting(session, admit, PlainTx(own))
            return drive(redriving(session.dialect, jobs, admitted, again=again, reason=reason), run)

        return (session.users if admit else session.pool).transact(work)

    def delete(self, ids: Sequence[str], *, by: str, reason: str | None) -> list[str]:
        asked = [id for id in ids if codec.is_id(id)]
        given = {"ids": codec.array(asked), "by": by, "reason": reason}
        return [row[0] for row in self._session.run_locked("lock_jobs", asked, "delete_jobs", given)]


def columns(selection: Selection) -> dict[str, Any]:
    """The parameters of the fragment `selected`."""
    return selection_columns(selection, datetime.isoformat, codec.array)
