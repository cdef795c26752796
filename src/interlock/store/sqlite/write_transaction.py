"""The write transaction of a SQLite file, as a `with` block."""

import os
import sqlite3
from types import TracebackType
from typing import Protocol

from ..tx import check_process
from .fair_lock import FairLock
from .fork_safety import Use, uses


class Writable(Protocol):
    """The part of a database file that a write transaction needs."""

    def begin(self) -> tuple[Use, sqlite3.Connection]:
        """Begin a transaction on this thread's connection, and register its use."""
        ...

    def commit(self, connection: sqlite3.Connection) -> None: ...
    def roll_back(self, connection: sqlite3.Connection) -> None: ...
    def convert(self, error: BaseException) -> None:
        """Raise `Unavailable` if the error is one of the file or the disk."""
        ...


class WriteTransaction:
    """One transaction: committed at the end of the block, rolled back if the block raises.

    It is a class because a generator would cost as much as a small statement does.
    """

    __slots__ = ("_connection", "_converts", "_file", "_first", "_lock", "_use")

    def __init__(self, file: Writable, lock: FairLock, *, first: bool, converts: bool) -> None:
        """Wrap a file and the lock of its writers.

        With `first` it goes ahead of the other writers; with `converts` an error of the file becomes `Unavailable`.
        """
        self._file, self._lock, self._first, self._converts = file, lock, first, converts

    def __enter__(self) -> sqlite3.Connection:
        self._lock.take(first=self._first)
        try:
            self._use, self._connection = self._file.begin()
        except BaseException:
            self._lock.give()
            raise
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._commit()
            else:
                self._roll_back()
                if self._converts:
                    self._file.convert(error)
        finally:
            try:
                uses.end(self._use)
            finally:
                self._lock.give()

    def _commit(self) -> None:
        try:
            check_process(self._use.pid)
            self._file.commit(self._connection)
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._use.pid == os.getpid():
            self._file.roll_back(self._connection)
