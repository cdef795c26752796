"""Work that was handed over to external systems, on SQLite."""

from ..report_types import ExternalWork
from .session import SqliteSession
from .timestamps import when


class SqliteExternal:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def work(self) -> list[ExternalWork]:
        now = self._session.timestamp()
        return [
            ExternalWork(
                kind,
                executions,
                max((now.at - (when(due) or now.at)).total_seconds(), 0.0),
                every,
                batch,
                failures,
                error,
                when(down),
            )
            for kind, executions, due, every, batch, failures, error, down in self._session.read("external_work", {})
        ]

    def count(self, kind: str, external_id: str) -> int:
        return int(self._session.read("count_external", {"kind": kind, "external_id": external_id})[0][0])

    def asking_job(self, root: str) -> str | None:
        found = self._session.read("asking_job", {"root": root})
        return str(found[0][0]) if found else None

    def report_check(self, kind: str, error: str | None) -> None:
        session = self._session
        session.check()
        given = {"kind": kind, "error": error, "now": session.timestamp().text}
        if session.read_own("report_check.changes", given):
            session.count_changed("report_check", given)
