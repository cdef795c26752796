"""The database file: one connection per thread, and the transactions on it."""

import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from ...errors import Unavailable
from ..commit_boundary import Run
from ..enqueue_plan import Rows, Statement
from ..retry import retry
from .fair_lock import FairLock
from .fork_safety import FileId, Use, uses
from .journal import choose_journal, why_no_wal
from .library import Library
from .write_transaction import WriteTransaction

T = TypeVar("T")

LOCK_TIMEOUT = 5.0
"""Seconds that SQLite itself waits for another process's lock."""
TRIES = 4
_log = logging.getLogger("interlock")


def runner(conn: sqlite3.Connection) -> Run:
    """A function that runs statements on this connection."""

    def run(statement: Statement) -> Rows:
        if statement.many:
            conn.executemany(statement.sql, statement.params)
            return ()
        cursor = conn.execute(statement.sql, cast(dict[str, Any], statement.params))
        return cursor.fetchall() if statement.answers else ()

    return run


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection, the thread that owns it, and its write-ahead log."""

    connection: sqlite3.Connection
    thread: threading.Thread
    log: FileId | None


class File:
    """A SQLite file, opened at the first call and again after `close`.

    Each thread has its own connection, which is closed some time after the thread has ended.
    """

    users = 0

    def __init__(self, path: str, library: Library, *, lock_timeout: float = LOCK_TIMEOUT) -> None:
        self.path = path
        self.library = library
        self._lock_timeout = lock_timeout
        self._log_path = f"{path}-wal"
        self._write_lock = FairLock(lock_timeout * TRIES)
        self._guard = threading.Lock()
        self._mine = threading.local()
        self._opened: list[Opened] = []
        self._journal: str | None = None
        self._id: FileId | None = None
        uses.register(self)
        # Close the connections of an app that is dropped without `close`, but not at exit: other threads may use them.
        weakref.finalize(self, _close_all, self._opened, os.getpid()).atexit = False

    def exists(self) -> bool:
        return Path(self.path).exists()

    @property
    def waiting(self) -> int:
        """How many threads of this process wait to write."""
        return self._write_lock.waiting

    @property
    def journal(self) -> str:
        """`wal`, or `truncate` if the library or the file system is not safe for a write-ahead log."""
        self.connection()
        return self._journal or ""

    # ------------------------------------------------------------ transactions
    def write(self, *, first: bool = False) -> WriteTransaction:
        """The one write transaction: committed at the end of the block, rolled back if it raises.

        If the file fails, it raises `Unavailable`. With `first` it goes ahead of every other writer that waits in this
        process: renewal must not wait behind users' transactions.
        """
        return WriteTransaction(self, self._write_lock, first=first, converts=True)

    def write_with_caller_code(self) -> WriteTransaction:
        """`write` for a block in which a caller's code runs: its errors propagate unchanged.

        Our statements use `converting_runner`.
        """
        return WriteTransaction(self, self._write_lock, first=False, converts=False)

    def begin(self) -> tuple[Use, sqlite3.Connection]:
        return self._retry_while_locked(self._begin)

    def _begin(self) -> tuple[Use, sqlite3.Connection]:
        use = uses.begin(self)
        try:
            conn = self._connection()
            conn.execute("BEGIN IMMEDIATE")
        except BaseException:
            uses.end(use)
            raise
        return use, conn

    def commit(self, connection: sqlite3.Connection) -> None:
        """End the transaction. It is stored only if the file is still at its path."""
        # A COMMIT that readers block leaves the transaction as it was, and is retried.
        self._retry_while_locked(lambda: connection.execute("COMMIT"))
        self.check_place()

    def roll_back(self, connection: sqlite3.Connection) -> None:
        # A closed connection or a full disk has rolled back already.
        with suppress(self.library.module.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def read(self, work: Callable[[Run], T]) -> T:
        """Run `work` outside of a transaction, or inside this thread's own one. Each statement has its own snapshot."""

        def once() -> T:
            with uses.of(self):
                return work(runner(self._connection()))

        return self._retry_while_locked(once)

    def snapshot(self, work: Callable[[Run], T]) -> T:
        """Run `work` on one snapshot."""

        def once() -> T:
            with uses.of(self):
                conn = self._connection()
                if conn.in_transaction:
                    return work(runner(conn))
                conn.execute("BEGIN")
                try:
                    return work(runner(conn))
                finally:
                    with suppress(self.library.module.Error):
                        conn.execute("ROLLBACK")

        return self._retry_while_locked(once)

    def converting_runner(self, conn: sqlite3.Connection) -> Run:
        """A function that runs our own statements, with converted errors, in a block that also runs a caller's code."""
        plain = runner(conn)

        def run(statement: Statement) -> Rows:
            with self.converting():
                return plain(statement)

        return run

    @contextmanager
    def converting(self) -> Generator[None]:
        """A block of our own statements: an error of the file or the disk becomes `Unavailable`."""
        try:
            yield
        except self.library.module.Error as error:
            self.convert(error)
            raise

    def convert(self, error: BaseException) -> None:
        """Raise `Unavailable` if the error is one of the file or the disk. If the file is locked, it can be retried."""
        if not isinstance(error, self.library.module.Error):
            return
        self.check_place()
        if self.library.is_gone(error) and not self.library.is_busy(error):
            raise Unavailable(
                f"{self.path} cannot be used now ({error}): is its disk mounted and not full, and may this process "
                "write to it?"
            ) from error

    def _retry_while_locked(self, work: Callable[[], T]) -> T:
        """Run `work`, and retry while another process has the lock. Between two tries this process may fork."""

        def once() -> T:
            try:
                return work()
            except self.library.module.Error as error:
                self.convert(error)
                raise

        try:
            return retry(once, self.library.is_busy, tries=TRIES)
        except self.library.module.OperationalError as error:
            if not self.library.is_busy(error):
                raise
            raise Unavailable(
                f"{self.path} has been locked for {self._lock_timeout * TRIES:.0f} s, so nothing was done. If the lock "
                "is a transaction of your own, pass its connection with conn=; if it is a process that stopped inside "
                "its transaction, resume or end that process."
            ) from error

    # ------------------------------------------------------------ connections
    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        with uses.of(self):
            return self._connection()

    def _connection(self) -> sqlite3.Connection:
        opened: Opened | None = getattr(self._mine, "opened", None)
        if opened is None:
            return self._open()
        self.check_place()
        return opened.connection

    def check_place(self) -> None:
        """`Unavailable` if the path no longer leads to the file, or its log, that this thread has open."""
        opened: Opened | None = getattr(self._mine, "opened", None)
        log = opened and opened.log
        if self._id is not None and self._id != _found(self.path):
            raise _misplaced(self.path)
        if log is not None and log != _found(self._log_path):
            raise _misplaced(self._log_path)

    def watcher(self) -> sqlite3.Connection:
        """This thread's connection, for a thread that only polls for changes: it waits for no lock."""
        with uses.of(self):
            opened: Opened | None = getattr(self._mine, "opened", None)
            if opened is not None:
                return opened.connection
            uses.check_inherited(self.path)
            return self._keep(Opened(self._connect(0), threading.current_thread(), None))

    def _open(self) -> sqlite3.Connection:
        uses.check_inherited(self.path)
        self.check_place()
        before = _found(self.path)
        conn = self._connect(self._lock_timeout)
        try:
            journal = self._retry_while_locked(lambda: choose_journal(conn, self.library, self.path))
            for pragma in ("synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY", "cache_size=-8000"):
                conn.execute(f"PRAGMA {pragma}")
        except BaseException:
            conn.close()
            self.check_place()
            raise
        fresh, self._journal = self._journal is None, journal
        self._id = self._id or before or _found(self.path)
        self._keep(Opened(conn, threading.current_thread(), self._log_of(conn, journal)))
        if fresh and journal != "wal":
            _log.info("%s uses a rollback journal (journal_mode=TRUNCATE): %s", self.path, why_no_wal(self.library))
        self.check_place()
        return conn

    def _log_of(self, conn: sqlite3.Connection, journal: str) -> FileId | None:
        if journal != "wal":
            return None
        # The first statement creates the log of a new file.
        conn.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        return _found(self._log_path)

    def _keep(self, opened: Opened) -> sqlite3.Connection:
        """Keep a connection, and close those of threads that have ended."""
        with self._guard:
            self._mine.opened = opened
            ended = [known for known in self._opened if not known.thread.is_alive()]
            self._opened[:] = [known for known in self._opened if known.thread.is_alive()] + [opened]
        for left in ended:
            left.connection.close()
        return opened.connection

    def _touch(self) -> None:
        conn = self.library.connect(self.path, 0, create=self._id is None)
        try:
            conn.execute("SELECT count(*) FROM sqlite_master").fetchall()
        finally:
            conn.close()

    def _connect(self, lock_timeout: float) -> sqlite3.Connection:
        uses.check_library(self.library.name, self._touch)
        try:
            # A file that was open here and is gone must not be created again.
            return self.library.connect(self.path, lock_timeout, create=self._id is None)
        except self.library.module.DatabaseError as error:
            raise Unavailable(
                f"{self.path} cannot be opened ({error}). Check that its directory exists and is writable."
            ) from error

    def close(self) -> None:
        """Close every connection. The next call opens the file that is at the path then."""
        with uses.of(self):
            self.close_connections()
            self._id = None

    def close_mine(self) -> None:
        """Close this thread's connection."""
        with uses.of(self), self._guard:
            opened: Opened | None = getattr(self._mine, "opened", None)
            if opened is not None:
                self._opened.remove(opened)
                del self._mine.opened
                opened.connection.close()

    def close_connections(self) -> None:
        with self._guard:
            opened, self._mine = self._opened[:], threading.local()
            self._opened.clear()
        for each in opened:
            each.connection.close()

    def after_fork(self) -> tuple[list[sqlite3.Connection], FileId | None]:
        opened, self._mine, self._guard = self._opened[:], threading.local(), threading.Lock()
        self._opened.clear()
        self._write_lock.after_fork()
        return [each.connection for each in opened], self._id


def _close_all(opened: list[Opened], pid: int) -> None:
    if os.getpid() == pid:
        for each in opened:
            each.connection.close()


def _misplaced(path: str) -> Unavailable:
    return Unavailable(
        f"{path} was deleted, moved or replaced while this process had it open, so this process neither reads nor "
        "writes it. Put the file back, or restart this process to use the new file."
    )


def _found(path: str) -> FileId | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - asked for at every transaction, and twice as quick
    except OSError:
        return None
    return found.st_dev, found.st_ino
