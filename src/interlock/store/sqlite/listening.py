"""When to claim next, on SQLite: how long until something is due, and a look at the file's counter of changes."""

import logging
import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime

from ...errors import Unavailable
from ...records import Way
from ...store import Listening
from ..ear import Ear, Ears
from ..enqueue import Statement
from . import rows
from .file import File
from .fork_safety import uses
from .moment import Moment, when

LOOK = 0.02
"""Seconds between two looks at the file."""
_AGAIN = 1.0
"""Seconds until a file that failed us is opened again."""
_log = logging.getLogger("interlock")


class Wake:
    """The part of the store that says when to claim. It needs `queries`, `file`, `check`, `moment` and what is set aside."""

    queries: dict[str, str]
    file: File
    look: float = LOOK
    _aside: dict[str, datetime]
    _ears: Ears

    def check(self) -> None:
        raise NotImplementedError

    def moment(self) -> Moment:
        raise NotImplementedError

    def due_in(self, ways: Sequence[Way], queues: Sequence[str]) -> float | None:
        self.check()
        now = self.moment()
        aside = [id for id, until in list(self._aside.items()) if until > now.at]
        given = {
            "queues": rows.array(sorted(set(queues))), "kinds": rows.kinds(ways), "now": now.text, "suspects": 1, "aside": rows.array(aside)}
        due = when(self.file.read(lambda run: run(Statement(self.queries["due_in"], given))[0][0]))
        return None if due is None else max(0.0, (due - now.at).total_seconds())

    def listen(self, wake: Callable[[], None]) -> Listening:
        self.check()
        return self._ears.open(SqliteEar(self.file, self.look, wake, self._ears.forget))


class SqliteEar(Ear):
    """Polls `PRAGMA data_version`, which changes when another connection commits. It never takes the write lock."""

    def __init__(self, file: File, look: float, wake: Callable[[], None], gone: Callable[[Ear], None]) -> None:
        super().__init__(wake, gone)
        self._file, self._look = file, look

    def _hear(self) -> None:
        while not self._closed.is_set():
            try:
                # A file that is not there is not made by looking.
                if self._file.exists():
                    self._watch()
            except (Unavailable, self._file.library.module.Error) as error:
                _log.warning("the listener's look at %s failed and is tried again: %s", self._file.path, error)
            self._closed.wait(_AGAIN)

    def _watch(self) -> None:
        """Until closed, or the file fails us. What changed before the first look is not known, so that is a call too."""
        known: sqlite3.Connection | None = None
        seen: int | None = None
        try:
            while not self._closed.is_set():
                with uses.of(self._file):
                    conn = self._file.watcher()
                    if conn is not known:
                        # The first connection, or the first after a fork.
                        known, seen = conn, None
                    version = self._version(conn)
                if version is not None and version != seen:
                    seen = version
                    self._call()
                self._closed.wait(self._look)
        finally:
            self._file.close_mine()

    def _version(self, conn: sqlite3.Connection) -> int | None:
        try:
            return int(conn.execute("PRAGMA data_version").fetchone()[0])
        except self._file.library.module.OperationalError as error:
            # Somebody is just writing: the next look sees it.
            if self._file.library.is_busy(error):
                return None
            raise
