"""Operations on many jobs on SQLite."""

from collections.abc import Callable, Sequence
from typing import Any

from ...core.driver import drive
from ...core.job import Job
from .. import caller_enqueue, codec
from ..redrive_plan import redriving
from ..selection import Counted, Redriven, SelectedJob, Selection, counted, selection_columns
from ..tx import PlainTx
from ..types import NewJob
from . import rows
from .file import runner
from .session import SqliteSession
from .timestamps import text_of, when


class SqliteBulk:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def count(self, selection: Selection) -> Counted:
        query = "count_live" if selection.is_live else "count_ended"
        return counted(self._session.read(query, columns(selection)), when)

    def page(self, selection: Selection, start: str, last: str, limit: int) -> list[SelectedJob]:
        given = columns(selection) | {"start": start, "last": last, "limit": max(limit, 0)}
        found = self._session.read("page_selected", given)
        return [SelectedJob(codec.job(row[: codec.JOB_WIDTH], when), bool(row[codec.JOB_WIDTH])) for row in found]

    def get(self, ids: Sequence[str]) -> list[Job]:
        return [codec.job(row, when) for row in self._session.read("jobs_by_id", {"ids": rows.array(ids)})]

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
            session.file.check_place()
            return caller_enqueue.redrive(session, conn, jobs, admit, again=again, reason=reason)
        with session.file.write_with_caller_code() as own:
            admitted = caller_enqueue.admitting(session, admit, PlainTx(own, session.file.converting))
            plan = redriving(session.dialect, jobs, admitted, again=again, reason=reason)
            return drive(plan, session.file.converting_runner(own))

    def delete(self, ids: Sequence[str], *, by: str, reason: str | None) -> list[str]:
        session = self._session
        session.check()
        given = {"ids": rows.array(ids), "by": by, "reason": reason, "now": session.timestamp().text}
        with session.file.write() as conn:
            run = runner(conn)
            run(session.statement("delete_jobs.audit", given, answers=False))
            return [row[0] for row in run(session.statement("delete_jobs", given))]


def columns(selection: Selection) -> dict[str, Any]:
    """The parameters of the fragment `selected`."""
    return selection_columns(selection, text_of, rows.array)
