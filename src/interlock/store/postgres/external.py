"""Work that was handed over to external systems, on PostgreSQL."""

from .. import codec
from ..report_types import ExternalWork
from .session import PostgresSession


class PostgresExternal:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def work(self) -> list[ExternalWork]:
        return [ExternalWork(*row) for row in self._session.read_with_fixed_plan("external_work", {})]

    def count(self, kind: str, external_id: str) -> int:
        return int(self._session.read("count_external", {"kind": kind, "external_id": external_id})[0][0])

    def asking_job(self, root: str) -> str | None:
        if not codec.is_id(root):
            return None
        found = self._session.read_with_fixed_plan("asking_job", {"root": root})
        return str(found[0][0]) if found else None

    def report_check(self, kind: str, error: str | None) -> None:
        self._session.count_changed("report_check", {"kind": kind, "error": error})
