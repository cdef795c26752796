"""Workers and schedules on SQLite."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from ...records import ScheduleFacts, WorkerFacts, WorkerSeen
from .. import codec
from ..enqueue import Rows, Statement
from .file import File, runner
from .moment import Moment, text_of, when


class Workers:
    """The part of the store that knows who works, and what comes round. It needs `queries`, `file`, `check` and `moment`."""

    queries: dict[str, str]
    file: File
    _ask: Callable[[str, dict[str, Any]], Rows]

    def check(self) -> None:
        raise NotImplementedError

    def moment(self) -> Moment:
        raise NotImplementedError

    def report_worker(self, worker: WorkerFacts) -> None:
        self._changed("report_worker", codec.worker_columns(worker) | {"now": self.moment().text}, first=True)

    def remove_worker(self, name: str) -> None:
        self._changed("remove_worker", {"name": name})

    def workers(self) -> list[WorkerSeen]:
        rows = self._ask("workers", {})
        now = self.moment().at
        return [codec.worker(row, when, silent=(now - datetime.fromisoformat(row[9])).total_seconds()) for row in rows]

    def forget_workers(self, silent: float) -> int:
        return self._changed("forget_workers", {"before": self.moment().plus(-silent)})

    def schedule(self, facts: ScheduleFacts) -> datetime | None:
        self.check()
        now = self.moment()
        given = codec.schedule_columns(facts) | {"now": now.text}

        def kept() -> Rows:
            return self.file.read(lambda run: run(Statement(self.queries["schedule.kept"], given)))

        rows = kept()
        if not rows or not rows[0][2]:
            with self.file.write() as conn:
                runner(conn)(Statement(self.queries["schedule"], given, answers=False))
                rows = kept()
        last, paused, _ = rows[0]
        return None if paused else when(last) or now.at

    def ticked(self, name: str, tick: datetime) -> None:
        self._changed("ticked", {"name": name, "tick": text_of(tick)})

    def report_outside(self, kind: str, error: str | None) -> None:
        self.check()
        given = {"kind": kind, "error": error, "now": self.moment().text}
        if self.file.read(lambda run: run(Statement(self.queries["report_outside.kept"], given))):
            self._changed("report_outside", given)

    def _changed(self, query: str, params: dict[str, Any], *, first: bool = False) -> int:
        """How many rows a statement changed."""
        self.check()
        with self.file.write(first=first) as conn:
            return conn.execute(self.queries[query], params).rowcount
