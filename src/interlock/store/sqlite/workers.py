"""Workers and schedules on SQLite."""

from datetime import datetime

from .. import codec
from ..enqueue_plan import Rows, Statement
from ..types import ScheduleFacts, WorkerFacts, WorkerSeen
from .file import runner
from .session import SqliteSession
from .timestamps import text_of, when


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
        return [codec.worker(row, when, silent=(now - datetime.fromisoformat(row[9])).total_seconds()) for row in rows]

    def forget(self, silent: float) -> int:
        return self._session.count_changed("forget_workers", {"before": self._session.timestamp().plus(-silent)})


class SqliteSchedules:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def save(self, facts: ScheduleFacts) -> datetime | None:
        session = self._session
        session.check()
        now = session.timestamp()
        given = codec.schedule_columns(facts) | {"now": now.text}

        def stored() -> Rows:
            return session.read_own("save_schedule.stored", given)

        rows = stored()
        if not rows or not rows[0][2]:
            with session.file.write() as conn:
                runner(conn)(Statement(session.queries["save_schedule"], given, answers=False))
                rows = stored()
        last, paused, _ = rows[0]
        return None if paused else when(last) or now.at

    def mark_tick(self, name: str, tick: datetime) -> None:
        self._session.count_changed("mark_tick", {"name": name, "tick": text_of(tick)})
