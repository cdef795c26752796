"""The journal of a SQLite file: a write-ahead log if the library is safe for one, else a rollback journal."""

import sqlite3

from ...errors import Unavailable
from .library import Library


def choose_journal(conn: sqlite3.Connection, library: Library, path: str) -> str:
    """Set the journal mode that suits the library, and return the mode that the file has now."""
    wanted = "wal" if library.wal_safe else "truncate"
    if wanted == "wal" and _pragma(conn, "journal_mode=WAL") == "wal":
        return "wal"
    try:
        mode = _pragma(conn, "journal_mode=TRUNCATE")
    except library.module.OperationalError as error:
        if not library.is_busy(error) or _pragma(conn, "journal_mode") != "wal":
            raise
        mode = "wal"
    if mode == "wal" and not library.wal_safe:
        raise Unavailable(
            f"{path} has a write-ahead log and is open elsewhere, but {library} can corrupt such a file when several "
            "connections use it. Close the others once, so that it can be changed to a rollback journal, or open it "
            "with sqlite+pysqlite3:// everywhere (pip install pysqlite3)."
        )
    return mode


def why_no_wal(library: Library) -> str:
    if library.wal_safe:
        return "a write-ahead log is not possible there"
    return (
        f"{library} can corrupt a write-ahead log; it is safe from 3.51.3 on, "
        "and sqlite+pysqlite3:// (pip install pysqlite3) uses such a version"
    )


def _pragma(conn: sqlite3.Connection, text: str) -> str:
    return str(conn.execute(f"PRAGMA {text}").fetchone()[0])
