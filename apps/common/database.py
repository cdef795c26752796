"""SQLAlchemy on SQLite and PostgreSQL, for an application's own tables beside those of Interlock."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import (
    ColumnClause,
    Connection,
    DateTime,
    Dialect,
    Engine,
    String,
    Table,
    TableClause,
    TypeDecorator,
    column,
    create_engine,
    event,
    func,
    inspect,
    select,
    table,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.types import TypeEngine
from typing_extensions import override

PYSQLITE3_SCHEME = "sqlite+pysqlite3"
"""URL scheme for the newer SQLite of the pysqlite3 wheel. Interlock understands it, too."""
SCHEMES = frozenset({"sqlite", PYSQLITE3_SCHEME, "postgresql"})
BUSY_TIMEOUT = 30.0
"""Seconds for which a transaction waits for the write lock of a SQLite file."""
# Without this option, the row count of an INSERT is lost with psycopg.
EXECUTION_OPTIONS = {"preserve_rowcount": True}
JobId = String(36).with_variant(postgresql.UUID(as_uuid=False), "postgresql")
EngineTable = Literal["jobs", "jobs_now", "executions", "receipts", "audit"]


class UtcDateTime(TypeDecorator[datetime]):
    """A UTC timestamp. On SQLite it is stored as text in Interlock's own format, so that both compare as text."""

    impl = DateTime(timezone=True)
    cache_ok = True

    @override
    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(String() if dialect.name == "sqlite" else DateTime(timezone=True))

    @override
    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        return (
            f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
            if value is not None and dialect.name == "sqlite"
            else value
        )

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        timestamp: datetime | None = datetime.fromisoformat(value) if isinstance(value, str) else value
        return None if timestamp is None else timestamp.astimezone(UTC)


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


# ---------------------------------------------------------------- the database
def make_engine(url: str) -> Engine:
    """Create the SQLAlchemy engine for this URL, without connecting.

    On SQLite, a transaction takes the write lock when it begins, unless its engine is `read_only`.
    """
    # `hide_parameters`: a database error would otherwise show tokens, names and ids.
    if not url.startswith("sqlite"):
        # Set explicitly, because the locks rely on it: a transaction that waited for a row must see the new version.
        return create_engine(
            f"postgresql+psycopg://{url.partition('://')[2]}",
            hide_parameters=True,
            execution_options=EXECUTION_OPTIONS,
            isolation_level="READ COMMITTED",
        )
    scheme, _, rest = url.partition("://")
    # Use the library that Interlock uses: two SQLite libraries in one process drop each other's file locks.
    library = import_module("pysqlite3" if scheme == PYSQLITE3_SCHEME else "sqlite3")
    engine = create_engine(
        f"sqlite://{rest}",
        module=library,
        connect_args={"timeout": BUSY_TIMEOUT},
        hide_parameters=True,
        execution_options=EXECUTION_OPTIONS,
    )

    # Python's driver begins a transaction late, and SQLite does not wait when a reader becomes a writer.
    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get("reads") else "BEGIN IMMEDIATE")

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.execute("PRAGMA foreign_keys = ON")

    return engine


def close_connections(engine: Engine) -> None:
    """Close all connections of this engine: idle ones now, and each one in use when its thread returns it.

    `dispose` alone would leave the latter to the garbage collector.
    """
    event.listen(engine.pool, "checkin", _close_returned)
    engine.dispose()


def _close_returned(_: object, entry: ConnectionPoolEntry) -> None:
    entry.close()


def create_sqlite_file(engine: Engine) -> None:
    """Create the file of a SQLite database, readable only by its owner, unless it exists.

    SQLite gives its journal files the same permissions.
    """
    if engine.dialect.name != "sqlite":
        return
    try:
        file = os.open(engine.url.database or "", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        # The file exists, or it cannot be created. In the second case SQLite reports the reason.
        return
    try:
        # Set the permissions regardless of the umask.
        os.fchmod(file, 0o600)
    finally:
        os.close(file)


def read_only(engine: Engine) -> Engine:
    """The same engine for read-only transactions: on SQLite they do not take the write lock."""
    return engine.execution_options(reads=True)


def display_url(engine: Engine) -> str:
    """The database URL without its password."""
    return engine.url.set(drivername=engine.dialect.name).render_as_string(hide_password=True)


def table_exists(engine: Engine, name: str) -> bool:
    """Whether the database has this table or view. The check does not create a SQLite file."""
    file = Path(engine.url.database or "") if engine.url.get_backend_name() == "sqlite" else None
    return (file is None or file.exists()) and inspect(engine).has_table(name)


def missing_tables_message(engine: Engine, app: str) -> str:
    """The error for a database without the application's tables."""
    return (
        f"There are no tables at {display_url(engine)}. Create them with `python -m apps.{app} migrate`, "
        f"or set {app.upper()}_DATABASE_URL to another database."
    )


@contextmanager
def translate_database_errors(app: str, bad: type[Exception]) -> Generator[None]:
    """Raise `bad` for a database URL that cannot be used, or for a driver that is not installed."""
    try:
        yield
    except (ArgumentError, ValueError):
        raise bad(
            f"{app.upper()}_DATABASE_URL is not a valid database URL. "
            f"Write sqlite:///{app}.db, or postgresql://user:password@host/name."
        ) from None
    except ModuleNotFoundError as error:
        needed = {"psycopg": ("PostgreSQL", "postgres"), "pysqlite3": (f"{PYSQLITE3_SCHEME}://", "sqlite")}
        if error.name not in needed:
            raise
        what, extra = needed[error.name]
        raise bad(f"{what} needs the extra `{extra}`: pip install '.[{app},{extra}]'.") from None


def database_error_message(error: DBAPIError, app: str) -> str:
    """The first line of a database error, without the statement and its parameters."""
    reason = str(error.orig).strip().partition("\n")[0]
    return f"The database is unreachable: {reason}. Check that it is running, and check {app.upper()}_DATABASE_URL."


def advisory_lock(tx: Connection, name: str) -> None:
    """Take the lock of this name until the transaction ends. On SQLite, the write lock already serves."""
    if tx.dialect.name == "postgresql":
        tx.execute(select(func.pg_advisory_xact_lock(func.hashtext(name))))


def create_view(tx: Connection, view: Table, sql: str) -> None:
    """Create this view, or replace one of an earlier version. The SQL names Interlock's view as {jobs_now}."""
    wanted, inspector = sql.strip().format(jobs_now=engine_table_name(tx.dialect, "jobs_now")), inspect(tx)
    if inspector.has_table(view.name):
        same_columns = [column["name"] for column in inspector.get_columns(view.name)] == view.c.keys()
        if same_columns and tx.dialect.name == "postgresql":
            # Do not drop it: other views and grants may depend on it. PostgreSQL does not keep its original SQL.
            tx.execute(text(wanted.replace("CREATE", "CREATE OR REPLACE", 1)))
            return
        if same_columns and inspector.get_view_definition(view.name) == wanted:
            return
        tx.execute(text(f"DROP VIEW {view.name}"))
    tx.execute(text(wanted))


# ---------------------------------------------------------------- statements
def insert(tx: Connection, into: Table) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that supports ON CONFLICT in this dialect."""
    return sqlite.insert(into) if tx.dialect.name == "sqlite" else postgresql.insert(into)


def engine_table_name(dialect: Dialect, name: EngineTable) -> str:
    """The SQL name of one of Interlock's tables: a prefix on SQLite, a schema on PostgreSQL."""
    return f"interlock_{name}" if dialect.name == "sqlite" else f"interlock.{name}"


def engine_table(dialect: Dialect, name: EngineTable, *columns: str) -> TableClause:
    """One of Interlock's tables with these columns, for SELECT statements."""
    typed: list[ColumnClause[Any]] = [
        column(each, JobId) if each in ("id", "job_id", "redrive_of", "root") else column(each) for each in columns
    ]
    schema, _, called = engine_table_name(dialect, name).rpartition(".")
    return table(called, *typed, schema=schema or None)
