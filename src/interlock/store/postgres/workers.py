"""Workers on PostgreSQL."""

from .. import codec
from ..types import WorkerFacts, WorkerSeen
from .session import PostgresSession, as_is


class PostgresWorkers:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def report(self, worker: WorkerFacts) -> None:
        session = self._session
        session.check()
        given = codec.worker_columns(worker)
        statement = session.statement("report_worker", given, answers=False)
        session.renewing.with_fixed_plans(session.fixed_plans, statement)

    def remove(self, name: str) -> None:
        self._session.count_changed("remove_worker", {"name": name})

    def all(self) -> list[WorkerSeen]:
        return [codec.worker(row, as_is, silent=row[11]) for row in self._session.read("workers", {})]

    def forget(self, silent: float) -> int:
        return self._session.count_changed("forget_workers", {"silent": silent})
