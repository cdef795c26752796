"""What the kits of all applications have in common: an application on a database, a worker, and time that a test sets."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, text

from apps.common.application import Application
from apps.common.database import OfEngine, name_of_engine
from interlock import App
from interlock.testing import Crashed, KitClock, KitWorker, Point


class Kit:
    """What a test does to the application that it has, and sees of it."""

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
        """Do all that is due by the test's clock."""
        self.worker.run_until_idle()

    def later(self, seconds: float) -> None:
        """Let time pass, then do all that is due."""
        self.clock.advance(seconds)
        self.run()

    def crash(self, point: Point, kind: str, lease: float) -> None:
        """A worker dies there, and its lease ends."""
        self.worker.crash_at(point, kind=kind)
        with pytest.raises(Crashed):
            self.run()
        self.clock.advance(lease + 1)

    # ------------------------------------------------------------ what became of it
    def state(self, job_id: str) -> str:
        return self.app.get(job_id).state

    def path(self, job_id: str) -> list[tuple[str | None, str | None]]:
        """The arrows that a job has walked."""
        return [(entry.from_state, entry.to_state) for entry in self.app.history(job_id) if entry.n == 0]

    def rows(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        """What the database itself says."""
        with self.application.engine.begin() as tx:
            return [tuple(row) for row in tx.execute(text(sql), params)]

    def write(self, sql: str, **params: Any) -> None:
        with self.application.engine.begin() as tx:
            tx.execute(text(sql), params)

    def counted(self, *own: str, engines: tuple[OfEngine, ...] = ("jobs",)) -> dict[str, int]:
        """How many rows there are in these tables of the application's own, and in these of the engine's."""
        names = (*own, *(name_of_engine(self.application.engine.dialect, each) for each in engines))
        return {name: self.rows(f"SELECT count(*) FROM {name}")[0][0] for name in names}


@contextmanager
def meanwhile(do: Callable[[], object]) -> Iterator[None]:
    """Done in a thread of its own while the block runs; what it raises is raised at the end of the block."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            do()
        except BaseException as error:  # noqa: BLE001 - raised where the test is
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    for error in raised:
        raise error
