"""Raw SQL for tests, written once for both databases."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg

from interlock.store.queryfile import to_pyformat

TABLES = (
    "jobs",
    "executions",
    "audit",
    "receipts",
    "archived",
    "lifecycles",
    "lifecycle_edges",
    "kinds",
    "limits",
    "key_rates",
    "key_checks",
    "operations",
    "batches",
    "dependencies",
    "flow_checks",
    "unique_windows",
    "schema_version",
)
FLOW = ("limits", "key_rates", "key_checks", "operations", "batches", "dependencies", "flow_checks")
EMPTIED = ("jobs", "executions", "audit", "receipts", "archived", "unique_windows", *FLOW)
"""The tables that jobs, limits and flows fill."""
KEYS = {"jobs": ("id",), "executions": ("job_id", "attempt"), "audit": ("job_id", "version", "n")}

Rows = list[tuple[Any, ...]]
Dump = dict[str, list[str]]


class Raw:
    """SQL that does not come from the store: `{jobs}` is a table, `:name` a parameter, `{later}` a time after
    `updated_at`.
    """

    refusal: type[Exception]
    """The exception that the driver raises if the database refuses a statement."""
    later: str

    def table(self, name: str) -> str:
        raise NotImplementedError

    def run(self, sql: str, params: dict[str, Any]) -> Rows:
        raise NotImplementedError

    def script(self, sql: str) -> None:
        """Run many statements."""
        raise NotImplementedError

    def columns(self, name: str) -> list[str]:
        raise NotImplementedError

    def upsert(self, name: str, columns: Sequence[str], select: str) -> str:
        """Return the statement that inserts the rows of `select`, replacing rows with the same key."""
        raise NotImplementedError

    def empty(self, name: str) -> str:
        """Return the statement that empties a table."""
        raise NotImplementedError

    def lines(self, name: str) -> list[str]:
        """Return every row of a table as text, sorted."""
        raise NotImplementedError

    def transaction(self) -> Any:
        """Open a caller's own transaction on this database: a context manager that gives its handle."""
        raise NotImplementedError

    def disable(self, *triggers: str) -> None:
        """Remove triggers, to test what happens without them."""
        raise NotImplementedError

    def unchecked(self) -> AbstractContextManager[None]:
        """Disable triggers for a while, and statistics for good: for loading many rows."""
        raise NotImplementedError

    def numbers(self, count: int) -> str:
        """Return a relation with one column `n` that counts from 1."""
        raise NotImplementedError

    def numbered(self, group: int) -> str:
        """Return the expression for the id of the nth job of a group."""
        raise NotImplementedError

    def time(self, at: datetime) -> str:
        """Return a time as it is stored."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------ shared by both dialects
    def __call__(self, sql: str, **params: Any) -> Rows:
        return self.run(self.words(sql), params)

    def words(self, sql: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: self.later if found[1] == "later" else self.table(found[1]), sql)

    def copy(self, name: str, where: str, changes: dict[str, str], *, replacing: bool = False, **params: Any) -> Rows:
        """Insert a copy of the rows of `where`, with these columns changed to these expressions; optionally replace
        rows with the same key.
        """
        columns = self.columns(name)
        select = f"SELECT {', '.join(changes.get(column, column) for column in columns)} FROM {self.table(name)} WHERE {where}"
        plain = f"INSERT INTO {self.table(name)} ({', '.join(columns)}) {select}"
        return self.run(self.words(self.upsert(name, columns, select) if replacing else plain), params)

    def dump(self) -> Dump:
        """Return everything that is stored."""
        return {name: self.lines(name) for name in TABLES}


class SqliteRaw(Raw):
    refusal = sqlite3.IntegrityError
    later = "strftime('%Y-%m-%dT%H:%M:%S', updated_at, '+1 second') || '.000000Z'"

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, isolation_level=None, timeout=10, check_same_thread=False)
        self._db.execute("PRAGMA foreign_keys = ON")
        self._file = file

    def table(self, name: str) -> str:
        return f"interlock_{name}"

    def run(self, sql: str, params: dict[str, Any]) -> Rows:
        return self._db.execute(sql, params).fetchall()

    def script(self, sql: str) -> None:
        self._db.executescript(sql)

    def columns(self, name: str) -> list[str]:
        return [row[1] for row in self._db.execute(f"PRAGMA table_info({self.table(name)})")]

    def upsert(self, name: str, columns: Sequence[str], select: str) -> str:
        return f"INSERT OR REPLACE INTO {self.table(name)} ({', '.join(columns)}) {select}"

    def empty(self, name: str) -> str:
        return f"DELETE FROM {self.table(name)}"

    def lines(self, name: str) -> list[str]:
        return sorted(map(repr, self._db.execute(f"SELECT * FROM {self.table(name)}")))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._file, isolation_level=None, timeout=10)
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
        finally:
            connection.close()

    def disable(self, *triggers: str) -> None:
        for trigger in triggers:
            self._db.execute(f"DROP TRIGGER interlock_{trigger}")

    @contextmanager
    def unchecked(self) -> Iterator[None]:
        triggers = self("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        for statement in ["BEGIN IMMEDIATE", *(f"DROP TRIGGER {name}" for name, _ in triggers)]:
            self._db.execute(statement)
        yield
        for statement in [*(sql for _, sql in triggers), "COMMIT"]:
            self._db.execute(statement)

    def numbers(self, count: int) -> str:
        return f"(WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted LIMIT {count}) SELECT n FROM counted)"

    def numbered(self, group: int) -> str:
        return f"printf('{group:08x}-0000-7000-8000-%012x', n)"

    def time(self, at: datetime) -> str:
        return f"'{at:%Y-%m-%dT%H:%M:%S.%f}Z'"

    def close(self) -> None:
        self._db.close()


class PostgresRaw(Raw):
    refusal = psycopg.errors.IntegrityError
    later = "updated_at + interval '1 second'"

    def __init__(self, url: str, schema: str) -> None:
        self._url, self._schema = url, schema
        self._db = psycopg.connect(url, autocommit=True)

    def table(self, name: str) -> str:
        return f"{self._schema}.{name}"

    def run(self, sql: str, params: dict[str, Any]) -> Rows:
        cursor = self._db.execute(to_pyformat(sql), params)
        return cursor.fetchall() if cursor.description else []

    def script(self, sql: str) -> None:
        self._db.execute(sql)

    def columns(self, name: str) -> list[str]:
        return [
            column.name for column in self._db.execute(f"SELECT * FROM {self.table(name)} LIMIT 0").description or ()
        ]

    def upsert(self, name: str, columns: Sequence[str], select: str) -> str:
        rest = ", ".join(f"{column} = excluded.{column}" for column in columns)
        return f"INSERT INTO {self.table(name)} ({', '.join(columns)}) {select} ON CONFLICT ({', '.join(KEYS[name])}) DO UPDATE SET {rest}"

    def empty(self, name: str) -> str:
        return f"TRUNCATE {self.table(name)} CASCADE"

    def lines(self, name: str) -> list[str]:
        return sorted(row[0] for row in self._db.execute(f"SELECT t::text FROM {self.table(name)} t"))

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self._url) as connection:
            yield connection

    def disable(self, *triggers: str) -> None:
        for trigger in triggers:
            self._db.execute(f"DROP TRIGGER {trigger} ON {self.table(trigger.partition('_')[0])}")

    @contextmanager
    def unchecked(self) -> Iterator[None]:
        for name in ("jobs", "executions", "audit"):
            self.script(f"ALTER TABLE {self.table(name)} SET (autovacuum_enabled = false)")
        self.script("SET session_replication_role = replica")
        yield
        self.script("SET session_replication_role = origin")

    def numbers(self, count: int) -> str:
        return f"generate_series(1, {count}) AS n"

    def numbered(self, group: int) -> str:
        return f"('{group:08x}-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"

    def time(self, at: datetime) -> str:
        return f"'{at.isoformat()}'::timestamptz"

    def close(self) -> None:
        self._db.close()
