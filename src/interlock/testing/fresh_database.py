"""An empty database for one test: a new SQLite file, or a schema on a PostgreSQL server for tests."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from ..app import App
from ..errors import UsageError
from ..store import POSTGRES
from ..store.queryfile import schema_name
from .kit_clock import KitClock

MARK = "interlock_test_clock"
"""The table that stores the time of a test. Its presence marks a schema that a test created."""


@contextmanager
def fresh(app: App[Any], clock: KitClock, directory: Path, url: str | None = None) -> Generator[App[Any]]:
    """Yield the app on an empty, migrated database that uses this clock: a file in `directory`, or the server at
    `url`.
    """
    before = app.database.clock
    app.database.clock = clock
    try:
        with ExitStack() as stack:
            server = None
            if url is not None and url.partition("://")[0] in POSTGRES:
                server = stack.enter_context(_Server(url, schema_name(app.database.schema)))
            stack.enter_context(app.bound_to(url or f"sqlite:///{directory / 'interlock.db'}"))
            app.migrate()
            if server is not None:
                server.follow(clock)
            yield app
    finally:
        app.database.clock = before


class _Server:
    """A schema on a PostgreSQL server, created for one test and dropped afterwards.

    A lock lets only one test at a time use the server.
    """

    def __init__(self, url: str, schema: str) -> None:
        from psycopg import connect, sql

        self._schema = schema
        self._words = {"schema": sql.Identifier(schema), "mark": sql.Identifier(MARK)}
        self._db = connect(f"postgresql://{url.partition('://')[2]}", autocommit=True)

    def __enter__(self) -> Self:
        try:
            self._db.execute("SELECT pg_advisory_lock(hashtext(%s))", [f"{MARK} {self._schema}"])
            self._clear()
            self._run("CREATE SCHEMA {schema}")
            self._run("CREATE TABLE {schema}.{mark} (now timestamptz NOT NULL)")
        except BaseException:
            self._db.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._db:
            self._clear()

    def follow(self, clock: KitClock) -> None:
        """Make the server's leases, delays and due times use this clock."""
        self._run("INSERT INTO {schema}.{mark} VALUES (%s)", [clock.now()])
        self._run(
            "CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT now "
            "FROM {schema}.{mark} $$"
        )
        clock.on_change = self._set

    def _set(self, now: datetime) -> None:
        self._run("UPDATE {schema}.{mark} SET now = %s", [now])

    def _clear(self) -> None:
        found = self._db.execute(
            "SELECT to_regnamespace(%s), to_regclass(%s)", [self._schema, f"{self._schema}.{MARK}"]
        ).fetchone()
        exists, ours = found or (None, None)
        if exists and not ours:
            raise UsageError(
                f"INTERLOCK_TEST_DATABASE_URL names a database whose schema {self._schema} was not made by a test, "
                "and each test would delete it: name a database for tests only, or drop that schema yourself."
            )
        if exists:
            self._run("DROP SCHEMA {schema} CASCADE")

    def _run(self, text: Any, params: list[Any] | None = None) -> None:
        from psycopg import sql

        self._db.execute(sql.SQL(text).format(**self._words), params)
