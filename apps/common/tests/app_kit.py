"""Base of the applications' test kits: an application on a database, a worker, and a clock that the test sets."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, text

from apps.common.application import Application
from apps.common.database import EngineTable, engine_table_name
from interlock import App
from interlock.testing import Crashed, Failpoint, KitClock, KitWorker


class AppKit:
    """Runs an application in a test: its clock, its worker, its jobs and its rows."""

    clock: KitClock
    worker: KitWorker

    @property
    def application(self) -> Application:
        raise NotImplementedError

    @property
    def app(self) -> App[Connection]:
        return self.application.app

    # ------------------------------------------------------------ time
    def run(self) -> None:
        """Run every job that is due by the test's clock."""
        self.worker.run_until_idle()

    def run_after(self, seconds: float) -> None:
        """Advance the clock, then run every job that is due."""
        self.clock.advance(seconds)
        self.run()

    def crash(self, point: Failpoint, kind: str, lease: float) -> None:
        """Crash the worker at this point, then let its lease expire."""
        self.worker.crash_at(point, kind=kind)
        with pytest.raises(Crashed):
            self.run()
        self.clock.advance(lease + 1)

    # ------------------------------------------------------------ jobs and rows
    def state(self, job_id: str) -> str:
        """The current state of a job."""
        return self.app.get(job_id).state

    def transitions(self, job_id: str) -> list[tuple[str | None, str | None]]:
        """The transitions of a job, in order."""
        return [(entry.from_state, entry.to_state) for entry in self.app.history(job_id) if entry.n == 0]

    def rows(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        """Run a SELECT in the database."""
        with self.application.engine.begin() as tx:
            return [tuple(row) for row in tx.execute(text(sql), params)]

    def write(self, sql: str, **params: Any) -> None:
        """Run a statement that writes, in its own transaction."""
        with self.application.engine.begin() as tx:
            tx.execute(text(sql), params)

    def count_rows(self, *own: str, engines: tuple[EngineTable, ...] = ("jobs",)) -> dict[str, int]:
        """The number of rows in these tables of the application, and in these of Interlock."""
        names = (*own, *(engine_table_name(self.application.engine.dialect, each) for each in engines))
        return {name: self.rows(f"SELECT count(*) FROM {name}")[0][0] for name in names}


@contextmanager
def in_background(task: Callable[[], object]) -> Iterator[None]:
    """Run `task` in a thread while the block runs. The end of the block raises its error."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    for error in raised:
        raise error
