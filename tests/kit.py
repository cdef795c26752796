"""Databases for tests: one interface for both stores, and a clock that tests can set."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from interlock.core.clock import SystemClock
from interlock.store import OpenStore, open_store
from tests.pool import NOTHING, Contents, FilePool, Schema, SchemaPool
from tests.raw import EMPTIED, TABLES, PostgresRaw, Raw, SqliteRaw

__all__ = [
    "EPOCH",
    "TABLES",
    "Place",
    "PostgresRaw",
    "Raw",
    "SettableClock",
    "SqliteRaw",
    "postgres_place",
    "sqlite_place",
]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class SettableClock:
    """A clock that stands still until a test moves it; `on_change` tells a database that keeps its own time."""

    def __init__(self) -> None:
        self._now = EPOCH
        self.on_change: Callable[[datetime], None] | None = None

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> datetime:
        self._now += timedelta(seconds=seconds)
        if self.on_change is not None:
            self.on_change(self._now)
        return self._now


@dataclass
class Place:
    """One database of a test, and the ways to open it; empty, and not migrated unless it comes from a pool."""

    url: str
    schema: str
    make_raw: Callable[[], Raw]
    clock: SettableClock = field(default_factory=SettableClock)
    _stores: list[OpenStore] = field(default_factory=list)
    _raw: Raw | None = None
    _closed: bool = False

    def open(self, *, real_time: bool = False) -> OpenStore:
        """Open a store on this database, as another process would."""
        store = open_store(self.url, self.schema, SystemClock() if real_time else self.clock)
        self._stores.append(store)
        return store

    def open_with(self, contents: Contents, *, real_time: bool = False) -> OpenStore:
        """Open a store with these lifecycles and kinds; its clock stands still unless it runs in real time."""
        store = self.open(real_time=real_time)
        store.registry.migrate(contents.lifecycles, contents.kinds)
        if not real_time:
            self.freeze()
        return store

    @property
    def raw(self) -> Raw:
        if self._raw is None:
            self._raw = self.make_raw()
        return self._raw

    def freeze(self) -> None:
        """Use the test's clock, once the schema exists. A SQLite store gets it when it is opened."""

    def recycle(self) -> bool:
        """Delete every job, if that is faster than a new database."""
        return False

    def close(self) -> None:
        self._closed = True
        for store in self._stores:
            store.close()
        if self._raw is not None:
            self._raw.close()


class PostgresPlace(Place):
    def freeze(self) -> None:
        self.raw.script(f"""
          CREATE TABLE IF NOT EXISTS {self.schema}.test_clock (now timestamptz NOT NULL);
          INSERT INTO {self.schema}.test_clock VALUES ('{self.clock.now().isoformat()}');
          CREATE OR REPLACE FUNCTION {self.schema}.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT now FROM {self.schema}.test_clock'""")
        self.clock.on_change = lambda now: self.raw.script(
            f"UPDATE {self.schema}.test_clock SET now = '{now.isoformat()}'"
        )

    def recycle(self) -> bool:
        tables = ", ".join(self.raw.table(name) for name in EMPTIED)
        self.raw.script(
            f"SET session_replication_role = replica; TRUNCATE {tables}; SET session_replication_role = origin"
        )
        return True

    def close(self) -> None:
        if not self._closed:
            self.drop()
        super().close()

    def drop(self) -> None:
        self.raw.script(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")


class PooledPostgres(PostgresPlace):
    """A schema that is already migrated, with the lifecycles and kinds that the test first asks for."""

    def __init__(self, url: str, pool: SchemaPool) -> None:
        self._pool = pool
        self._taken: Schema | None = None
        super().__init__(url, "", lambda: PostgresRaw(url, self.schema))

    @property
    def schema(self) -> str:  # type: ignore[override] - decided at its first use
        if self._taken is None:
            self._taken = self._pool.take()
        return self._taken.name

    @schema.setter
    def schema(self, name: str) -> None:
        """The pool chooses the name."""

    def open_with(self, contents: Contents, *, real_time: bool = False) -> OpenStore:
        if self._taken is not None:
            return super().open_with(contents, real_time=real_time)
        self._taken = self._pool.take(contents)
        store = self.open(real_time=real_time)
        if not real_time:
            self.freeze()
        return store

    def drop(self) -> None:
        """The pool drops it."""

    def close(self) -> None:
        closed = self._closed
        super().close()
        if self._taken is not None and not closed:
            self._pool.give_back(self._taken)


class PooledSqlite(Place):
    """A copy of a file that is already migrated, with the lifecycles and kinds that the test first asks for."""

    def __init__(self, file: Path, pool: FilePool) -> None:
        self._file, self._pool = file, pool
        super().__init__("", "interlock", lambda: SqliteRaw(self._copy()))

    def _copy(self, contents: Contents = NOTHING) -> Path:
        if not self._file.exists():
            self._pool.copy(self._file, contents)
        return self._file

    @property
    def url(self) -> str:  # type: ignore[override] - decided at its first use
        return f"sqlite:///{self._copy()}"

    @url.setter
    def url(self, url: str) -> None:
        """The pool chooses the name."""

    def open_with(self, contents: Contents, *, real_time: bool = False) -> OpenStore:
        if self._file.exists():
            return super().open_with(contents, real_time=real_time)
        self._copy(contents)
        return self.open(real_time=real_time)


_numbers = itertools.count()


def sqlite_place(directory: Path, pool: FilePool | None = None) -> Place:
    """Return an empty database in a new file of this directory."""
    file = directory / f"jobs_{next(_numbers)}.db"
    if pool is not None:
        return PooledSqlite(file, pool)
    return Place(f"sqlite:///{file}", "interlock", lambda: SqliteRaw(file))


def postgres_place(url: str, pool: SchemaPool | None = None) -> Place:
    """Return an empty database in a new schema of this server."""
    if pool is not None:
        return PooledPostgres(url, pool)
    schema = f"t_{next(_numbers)}"
    return PostgresPlace(url, schema, lambda: PostgresRaw(url, schema))
