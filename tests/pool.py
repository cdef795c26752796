"""Migrated databases that tests reuse: creating and dropping a schema takes much longer than emptying it.

A test sees no row, setting or notification of an earlier one. A PostgreSQL schema is reused only if its catalogue is
unchanged and every connection opened since is closed; otherwise it is dropped. A SQLite file is never reused: it is
copied from a migrated one.
"""

import itertools
import shutil
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from interlock.core.clock import SystemClock
from interlock.core.lifecycle import Lifecycle
from interlock.store import open_store
from interlock.store.types import KindFacts

USES = 60
"""Tests per schema: until then, deleted rows stay in its files."""
GRACE = 0.25
"""Seconds until a connection that the test closed must be gone from the server."""
DECLARED = ("lifecycles", "lifecycle_edges", "lifecycle_changes", "lifecycle_phases", "kinds")
"""The tables that `migrate` fills."""
REWRITTEN = ("step", "fits", "starts")
"""The functions that `migrate` rewrites."""

# The catalogue rows that define a schema, each with the transaction that last wrote it.
CATALOGUE = """
  SELECT string_agg(item, ' ' ORDER BY item) FROM (
    SELECT 'n' || oid || ':' || xmin AS item FROM pg_namespace WHERE nspname = %(schema)s
    UNION ALL SELECT 'r' || oid || ':' || xmin FROM pg_class WHERE relnamespace = %(schema)s::regnamespace
    UNION ALL SELECT 'a' || attrelid || '.' || attnum || ':' || a.xmin FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
      WHERE relnamespace = %(schema)s::regnamespace AND relkind = 'r' AND attnum > 0
    UNION ALL SELECT 't' || t.oid || ':' || t.xmin FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
      WHERE relnamespace = %(schema)s::regnamespace
    UNION ALL SELECT 'k' || oid || ':' || xmin FROM pg_constraint WHERE connamespace = %(schema)s::regnamespace
    UNION ALL SELECT 'f' || oid || ':' || xmin FROM pg_proc
      WHERE pronamespace = %(schema)s::regnamespace AND proname <> ALL (%(rewritten)s)
  ) AS items"""
OPEN = """
  SELECT count(*) FROM pg_stat_activity
  WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND backend_start > %s"""


@dataclass(frozen=True)
class Contents:
    """The lifecycles and kinds with which a database is migrated; none by default."""

    lifecycles: tuple[Lifecycle, ...] = ()
    kinds: tuple[KindFacts, ...] = ()

    @property
    def key(self) -> str:
        return repr(([each.digest for each in self.lifecycles], self.kinds))

    def migrate(self, url: str, schema: str) -> None:
        store = open_store(url, schema, SystemClock())
        try:
            store.registry.migrate(list(self.lifecycles), list(self.kinds))
        finally:
            store.close()


NOTHING = Contents()


# ---------------------------------------------------------------- PostgreSQL
@dataclass
class Schema:
    """A migrated schema, and what must be true of it when it is returned."""

    name: str
    contents: Contents
    uses: int = 0
    since: Any = None
    """When its test started, by the server's clock."""
    pristine: tuple[Any, ...] = ()
    version: int = 0
    tables: list[str] = field(default_factory=list)
    clock: str = ""
    """The statement that restores real time."""

    @property
    def kept(self) -> tuple[str, ...]:
        """The tables that are not cleared, because no test may change them."""
        return DECLARED if self.contents.lifecycles else ()

    @property
    def rewritten(self) -> list[str]:
        return ["clock", *(() if self.contents.lifecycles else REWRITTEN)]


class SchemaPool:
    """The migrated schemas of one server that no test uses at the moment."""

    def __init__(self, url: str, prefix: str = "p") -> None:
        self._url, self._prefix = url, prefix
        self._numbers = itertools.count()
        self._free: dict[str, list[Schema]] = {}
        self._all: set[str] = set()
        self._db = psycopg.connect(url, autocommit=True)
        self._db.execute("SET lock_timeout = '1s'")

    def take(self, contents: Contents = NOTHING) -> Schema:
        """Return an empty schema that is migrated with these contents and runs in real time."""
        free = self._free.setdefault(contents.key, [])
        schema = free.pop() if free else self._make(contents)
        schema.uses += 1
        schema.since = self._one("SELECT clock_timestamp()")[0]
        return schema

    def give_back(self, schema: Schema) -> None:
        """Empty it for the next test, or drop it if it was changed."""
        if schema.uses < USES and self._is_quiet(schema) and self._delete_rows(schema):
            self._free[schema.contents.key].append(schema)
        else:
            self._drop(schema.name)

    def close(self) -> None:
        for name in sorted(self._all):
            self._drop(name)
        self._db.close()

    def _make(self, contents: Contents) -> Schema:
        schema = Schema(f"{self._prefix}_{next(self._numbers)}", contents)
        self._all.add(schema.name)
        contents.migrate(self._url, schema.name)
        self._db.execute(f"CREATE TABLE {schema.name}.test_clock (now timestamptz NOT NULL)")
        listed = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r' ORDER BY relname"
        schema.tables = [row[0] for row in self._db.execute(listed, (schema.name,))]
        schema.version = self._one(f"SELECT max(version) FROM {schema.name}.schema_version")[0]
        source = "SELECT pg_get_functiondef(to_regprocedure(%s)::oid)"
        schema.clock = self._one(source, (f"{schema.name}.clock()",))[0]
        schema.pristine = self._look(schema)
        return schema

    def _look(self, schema: Schema) -> tuple[Any, ...]:
        rows = "".join(
            f" || (SELECT ' {table} ' || count(*) || min(xmin::text) || max(xmin::text) FROM {schema.name}.{table})"
            for table in schema.kept
        )
        return self._one(f"SELECT ({CATALOGUE}){rows}", {"schema": schema.name, "rewritten": schema.rewritten})

    def _is_quiet(self, schema: Schema) -> bool:
        """Return whether the test left no connection open, which could write during the next test."""
        until = time.monotonic() + GRACE
        while self._one(OPEN, (schema.since,))[0]:
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True

    def _delete_rows(self, schema: Schema) -> bool:
        cleared = [name for name in schema.tables if name not in schema.kept]
        statements = "; ".join(f"DELETE FROM {schema.name}.{name}" for name in cleared)
        try:
            if self._look(schema) != schema.pristine:
                return False
            self._db.execute(
                f"BEGIN; SET LOCAL session_replication_role = replica; {statements}; "
                f"INSERT INTO {schema.name}.schema_version (version) VALUES ({schema.version}); {schema.clock}; COMMIT"
            )
        except psycopg.Error:
            self._db.execute("ROLLBACK")
            return False
        return True

    def _drop(self, name: str) -> None:
        try:
            self._db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        except psycopg.errors.LockNotAvailable:
            return  # retried at the end of the session, when the lock is free
        self._all.discard(name)

    def _one(self, sql: str, params: Any = None) -> tuple[Any, ...]:
        row = self._db.execute(sql, params).fetchone()
        assert row is not None
        return row


# ---------------------------------------------------------------- SQLite
class FilePool:
    """Migrated SQLite files; every test gets its own copy."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, Path] = {}

    def copy(self, to: Path, contents: Contents = NOTHING) -> None:
        """Make a migrated database with these contents in this file."""
        if contents.key not in self._made:
            self._made[contents.key] = self._make(contents)
        shutil.copyfile(self._made[contents.key], to)
        # Each database has its own id, by which a caller's connection is recognised.
        db = sqlite3.connect(to, isolation_level=None)
        try:
            db.execute("UPDATE interlock_schema_version SET instance = lower(hex(randomblob(16)))")
        finally:
            db.close()

    def _make(self, contents: Contents) -> Path:
        file = self._directory / f"template_{len(self._made)}.db"
        contents.migrate(f"sqlite:///{file}", "interlock")
        db = sqlite3.connect(file, isolation_level=None)
        try:
            assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        finally:
            db.close()
        return file
