"""Workers on SQLite."""

from datetime import datetime

from .. import codec
from ..types import WorkerFacts, WorkerSeen
from .session import SqliteSession
from .timestamps import when


class SqliteWorkers:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def report(self, worker: WorkerFacts) -> None:
        given = codec.worker_columns(worker) | {"now": self._session.timestamp().text}
        self._session.count_changed("report_worker", given, first=True)

    def remove(self, name: str) -> None:
        self._session.count_changed("remove_worker", {"name": name})

    def all(self) -> list[WorkerSeen]:
        rows = self._session.read("workers", {})
        now = self._session.timestamp().at
        return [codec.worker(row, when, silent=(now - datetime.fromisoformat(row[10])).total_seconds()) for row in rows]

    def forget(self, silent: float) -> int:
        return self._session.count_changed("forget_workers", {"before": self._session.timestamp().plus(-silent)})
