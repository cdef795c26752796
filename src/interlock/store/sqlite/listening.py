"""Wake-ups on SQLite: polls the file's counter of changes."""

import logging
import sqlite3
from collections.abc import Callable

from ...errors import Unavailable
from ..listener import Listener
from .file import File
from .fork_safety import uses

POLL_EVERY = 0.02
"""Seconds between two reads of the counter."""
_REOPEN_AFTER = 1.0
"""Seconds until a file that could not be read is opened again."""
_log = logging.getLogger("interlock")


class SqliteListener(Listener):
    """Polls `PRAGMA data_version`, which changes when another connection commits. It never takes the write lock."""

    def __init__(
        self,
        file: File,
        poll_every: float,
        wake: Callable[[], None],
        on_open: Callable[[], None] | None,
        on_close: Callable[[Listener], None],
    ) -> None:
        super().__init__(wake, on_open, on_close)
        self._file, self._poll_every = file, poll_every

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                # A missing file is not created.
                if self._file.exists():
                    self._watch()
            except (Unavailable, self._file.library.module.Error) as error:
                _log.warning("The listener could not read %s and tries again: %s", self._file.path, error)
            self._closed.wait(_REOPEN_AFTER)

    def _watch(self) -> None:
        """Watch until closed, or until the file cannot be read.

        Changes before the first read are unknown, so the first read calls `on_open`.
        """
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
                    opened, seen = seen is None, version
                    self._call(opened=opened)
                self._closed.wait(self._poll_every)
        finally:
            self._file.close_mine()

    def _version(self, conn: sqlite3.Connection) -> int | None:
        try:
            return int(conn.execute("PRAGMA data_version").fetchone()[0])
        except self._file.library.module.OperationalError as error:
            # Another connection is writing: the next read sees its change.
            if self._file.library.is_busy(error):
                return None
            raise
