"""A migrated database without rows for a test kit.

Creating a PostgreSQL schema takes far longer than emptying it, so the tests of a process use one database in turn. It is
created anew if a test changed more than rows.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from apps.common.application import Application
from apps.common.tests.databases import drop_everything, end_other_sessions
from interlock.testing import KitClock, fresh
from tests.pool import CATALOGUE

MAX_USES = 60
"""Deleted rows remain in the files of a table, so a database is created anew after this many tests."""
SCHEMAS = ("interlock", "public")
_migrated: dict[str, "_Migrated"] = {}
"""By URL, the databases of this process that an application has migrated."""
TABLES = """
  SELECT format('%%I.%%I', schemaname, tablename) FROM pg_tables WHERE schemaname = ANY (%s) ORDER BY 1"""
SEQUENCES = """
  SELECT format('%%I.%%I', schemaname, sequencename) FROM pg_sequences WHERE schemaname = ANY (%s) ORDER BY 1"""
CLOCK = """
  CREATE TABLE interlock.test_clock (now timestamptz NOT NULL);
  CREATE OR REPLACE FUNCTION interlock.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT now FROM interlock.test_clock'"""


@contextmanager
def migrated_database(application: Application, clock: KitClock, directory: Path, url: str) -> Iterator[None]:
    """Bind the application to a migrated database without rows that uses this clock."""
    with ExitStack() as stack:
        if url.startswith("sqlite"):
            stack.enter_context(fresh(application.app, clock, directory, url))
            application.migrate()
        else:
            database = application.app.database
            database.clock = clock
            db = stack.enter_context(psycopg.connect(url, autocommit=True))
            stack.enter_context(database.bound_to(url))
            _empty(db, url, application)
            db.execute("INSERT INTO interlock.test_clock VALUES (%s)", [clock.now()])
            clock.on_change = lambda now: db.execute("UPDATE interlock.test_clock SET now = %s", [now]) and None
        yield


@dataclass
class _Migrated:
    """A database as an application migrated it."""

    application: type[Application]
    catalogue: list[Any]
    rows: list[Any]
    """For each table that `migrate` fills, what tells whether a test changed it."""
    filled: list[str]
    cleared: list[str]
    sequences: list[str]
    uses: int = 1


def _empty(db: psycopg.Connection, url: str, application: Application) -> None:
    end_other_sessions(db)
    known = _migrated.pop(url, None)
    if known is None or known.application is not type(application) or not _delete_rows(db, known):
        known = _create(db, application)
    _migrated[url] = known


def _delete_rows(db: psycopg.Connection, known: _Migrated) -> bool:
    """Delete the rows of the last test. Returns False if the database is to be created anew."""
    known.uses += 1
    unchanged = known.catalogue == _catalogue(db) and known.rows == _rows(db, known.filled)
    if known.uses > MAX_USES or not unchanged:
        return False
    deletes = "; ".join(f"DELETE FROM {table}" for table in known.cleared)
    resets = "; ".join(f"SELECT setval('{name}', 1, false)" for name in known.sequences)
    db.execute(f"BEGIN; SET LOCAL session_replication_role = replica; {deletes}; {resets}; COMMIT")
    return True


def _create(db: psycopg.Connection, application: Application) -> _Migrated:
    drop_everything(db)
    application.migrate()
    db.execute(CLOCK)
    tables = [row[0] for row in db.execute(TABLES, [list(SCHEMAS)])]
    filled = [table for table in tables if db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()]
    cleared = [table for table in tables if table not in filled]
    sequences = [row[0] for row in db.execute(SEQUENCES, [list(SCHEMAS)])]
    return _Migrated(type(application), _catalogue(db), _rows(db, filled), filled, cleared, sequences)


def _catalogue(db: psycopg.Connection) -> list[Any]:
    return [db.execute(CATALOGUE, {"schema": name, "rewritten": []}).fetchone() for name in SCHEMAS]


def _rows(db: psycopg.Connection, filled: list[str]) -> list[Any]:
    seen = "count(*), min(xmin::text), max(xmin::text)"
    return [db.execute(f"SELECT {seen} FROM {table}").fetchone() for table in filled]
