"""The SQLite library that opens a file: the standard `sqlite3`, or, if the URL names it, the newer `pysqlite3`.

Two SQLite libraries in one process that open one file drop each other's locks, so only the URL chooses.
"""

import os
import sqlite3
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from ...errors import Unavailable, UsageError

MODULES = {"sqlite": "sqlite3", "sqlite+pysqlite3": "pysqlite3"}
# STRICT tables came with 3.37, RETURNING with 3.35.
OLDEST = (3, 37, 0)
STATEMENTS = 256
"""How many prepared statements a connection caches: enough for all of ours and some of a caller's."""

# Primary result codes that concern the file or the connection, never a row: busy, locked, out of memory, read-only,
# interrupted, I/O error, corrupt, full, cannot open, locking protocol, no database.
_FILE_CODES = frozenset({5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 26})
_BUSY = frozenset({5, 6})


def wal_safe(version: tuple[int, ...]) -> bool:
    """Whether a write-ahead log is safe with this version.

    Up to 3.51.2, except in two repaired branches, concurrent checkpoints can corrupt the file.
    """
    return version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)


@dataclass(frozen=True, slots=True)
class Library:
    """A SQLite library, by the module through which Python reaches it."""

    name: str
    module: Any

    @property
    def version(self) -> tuple[int, ...]:
        return cast(tuple[int, ...], self.module.sqlite_version_info)

    @property
    def wal_safe(self) -> bool:
        return wal_safe(self.version)

    def __str__(self) -> str:
        return f"SQLite {'.'.join(map(str, self.version))} of {self.name}"

    def connect(self, path: str, timeout: float, *, create: bool) -> sqlite3.Connection:
        """A connection that begins and ends no transaction by itself. Its first statement may `create` the file."""
        connection = self.module.connect(
            path if create else f"{Path(path).absolute().as_uri()}?mode=rw",
            uri=not create,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS,
        )
        # pysqlite3 is the standard module under another name.
        return cast(sqlite3.Connection, connection)

    def is_busy(self, error: BaseException) -> bool:
        """Whether another connection has locked the file, so that the same statement can be retried."""
        return isinstance(error, self.module.OperationalError) and _code(error) in _BUSY

    def should_retry(self, error: Exception) -> bool:
        """`is_busy`, also for a caller's library that wraps the driver's error."""
        return any(each is not None and self.is_busy(each) for each in (error, error.__cause__))

    def is_gone(self, error: BaseException) -> bool:
        """Whether the file, the disk or the connection failed."""
        return isinstance(error, self.module.Error) and (_code(error) in _FILE_CODES or "closed database" in str(error))

    def is_database_error(self, error: BaseException) -> bool:
        """Whether the file, the connection or the schema is to blame, not a row."""
        # A missing table has no code of its own.
        missing = isinstance(error, self.module.Error) and str(error).startswith("no such ")
        return isinstance(error, Unavailable) or self.is_gone(error) or missing


def _code(error: BaseException) -> int:
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def library(name: str) -> Library:
    """The library of this module. `UsageError`, with the package to install, if it is missing or too old."""
    try:
        found = Library(name, import_module(name))
    except ModuleNotFoundError:
        raise UsageError(f"A sqlite+{name} URL needs {name}, which is not installed; run: pip install {name}") from None
    if found.version < OLDEST:
        raise UsageError(
            f"{found} is too old: Interlock needs {'.'.join(map(str, OLDEST))}. Run: pip install pysqlite3, and write "
            "the URL as sqlite+pysqlite3:///…"
        )
    return found


def locate(url: str) -> tuple[str, Library]:
    """The file and the library of a URL: `sqlite:///relative.db` or `sqlite:////absolute.db`, or `sqlite+pysqlite3`."""
    scheme, _, rest = url.partition("://")
    if scheme not in MODULES or not rest.startswith("/"):
        raise UsageError(
            f"{url!r} does not name a SQLite file: write sqlite:///jobs.db for a file in the current directory, "
            "sqlite:////var/lib/jobs.db for an absolute path."
        )
    path = rest[1:]
    if path in ("", ":memory:") or path.startswith("file:"):
        raise UsageError(
            f"{url!r} is an in-memory database or a file: URI, whose connections would not share their jobs; "
            "name a file, as in sqlite:///jobs.db."
        )
    if "?" in path:
        raise UsageError(
            f"{url!r} has options after `?`, which are not supported: Interlock sets the options that it needs."
        )
    # Now, so that a later change of directory does not change the database. Resolving a link would move the journal
    # away from the name that others open.
    return os.path.abspath(path), library(MODULES[scheme])  # noqa: PTH100
