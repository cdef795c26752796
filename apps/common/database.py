"""An application's own tables, beside the engine's in one database: SQLAlchemy on SQLite and on PostgreSQL."""

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
from sqlalchemy.types import TypeEngine
from typing_extensions import override

NEWER = "sqlite+pysqlite3"
"""The URL scheme for the newer SQLite of the wheel pysqlite3. Application and engine both use it."""
SCHEMES = frozenset({"sqlite", NEWER, "postgresql"})
BUSY = 30.0
"""Seconds for which a transaction waits for its turn on a SQLite file."""
# Without it, psycopg's count of inserted rows is gone when it is read.
COUNTED = {"preserve_rowcount": True}
JobId = String(36).with_variant(postgresql.UUID(as_uuid=False), "postgresql")
OfEngine = Literal["jobs", "jobs_now", "executions", "receipts", "audit"]


class Utc(TypeDecorator[datetime]):
    """A moment in UTC. SQLite keeps it as the engine does there, so that moments of both compare as texts."""

    impl = DateTime(timezone=True)
    cache_ok = True

    @override
    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(String() if dialect.name == "sqlite" else DateTime(timezone=True))

    @override
    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z" if value is not None and dialect.name == "sqlite" else value

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        moment: datetime | None = datetime.fromisoformat(value) if isinstance(value, str) else value
        return None if moment is None else moment.astimezone(UTC)


def now() -> datetime:
    return datetime.now(UTC)


# ---------------------------------------------------------------- the database
def connect(url: str) -> Engine:
    """The engine of this database. It opens nothing yet. A transaction on SQLite begins as a writer, unless it says that it only `reads`."""
    # An error of the database would show what was to be stored: tokens, names, ids.
    if not url.startswith("sqlite"):
        # Whatever the server's own default is: who waits for a row's lock must see what its holder wrote.
        return create_engine(
            f"postgresql+psycopg://{url.partition('://')[2]}", hide_parameters=True, execution_options=COUNTED, isolation_level="READ COMMITTED")
    scheme, _, rest = url.partition("://")
    # The same library as the engine's: two libraries that open one file in one process drop each other's locks.
    library = import_module("pysqlite3" if scheme == NEWER else "sqlite3")
    engine = create_engine(
        f"sqlite://{rest}", module=library, connect_args={"timeout": BUSY}, hide_parameters=True, execution_options=COUNTED)

    # Python's driver begins late, and a reader that turns writer halfway finds the file busy without being let wait for it.
    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get("reads") else "BEGIN IMMEDIATE")

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.execute("PRAGMA foreign_keys = ON")

    return engine


def create_file(engine: Engine) -> None:
    """Create the file of a SQLite database for its user alone, unless it exists. SQLite gives the files beside it the same permissions."""
    if engine.dialect.name != "sqlite":
        return
    try:
        file = os.open(engine.url.database or "", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        # It exists, or it cannot be created; then SQLite reports why.
        return
    try:
        # Set the permissions regardless of the umask.
        os.fchmod(file, 0o600)
    finally:
        os.close(file)


def reading(engine: Engine) -> Engine:
    """The same engine, for transactions that write nothing: on SQLite they keep no writer waiting."""
    return engine.execution_options(reads=True)


def place(engine: Engine) -> str:
    """Where the database is, without its password."""
    return engine.url.set(drivername=engine.dialect.name).render_as_string(hide_password=True)


def there(engine: Engine, name: str) -> bool:
    """Whether the database has this table or view. Looking makes no file."""
    file = Path(engine.url.database or "") if engine.url.get_backend_name() == "sqlite" else None
    return (file is None or file.exists()) and inspect(engine).has_table(name)


def no_tables(engine: Engine, app: str) -> str:
    """That they are still to be made, in one sentence."""
    return f"There are no tables at {place(engine)}: make them with `python -m apps.{app} migrate`, or name another place in {app.upper()}_DATABASE_URL."


@contextmanager
def usable(app: str, bad: type[Exception]) -> Generator[None]:
    """Around whatever makes an application of its settings: a database that can never be used is `bad`, in one sentence."""
    try:
        yield
    except (ArgumentError, ValueError):
        raise bad(f"{app.upper()}_DATABASE_URL cannot be read: write sqlite:///{app}.db, or postgresql://user:password@host/name.") from None
    except ModuleNotFoundError as error:
        needed = {"psycopg": ("PostgreSQL", "postgres"), "pysqlite3": (f"{NEWER}://", "sqlite")}
        if error.name not in needed:
            raise
        what, extra = needed[error.name]
        raise bad(f"{what} needs the extra `{extra}`: pip install '.[{app},{extra}]'.") from None


def unasked(error: DBAPIError, app: str) -> str:
    """That the database cannot be asked, and why, in one sentence. The error itself would show the statement and its values."""
    return f"The database cannot be asked: {str(error.orig).strip().partition(chr(10))[0]}. See that it runs, and {app.upper()}_DATABASE_URL."


def turn(tx: Connection, name: str) -> None:
    """Wait for one's turn at something of this name, until the transaction ends. On SQLite a writer has it already."""
    if tx.dialect.name == "postgresql":
        tx.execute(select(func.pg_advisory_xact_lock(func.hashtext(name))))


def create_view(tx: Connection, view: Table, sql: str) -> None:
    """Have this view read as this SQL does, which names the engine's own as {jobs_now}. One of an earlier version is made anew."""
    wanted, seen = sql.strip().format(jobs_now=name_of_engine(tx.dialect, "jobs_now")), inspect(tx)
    if seen.has_table(view.name):
        alike = [column["name"] for column in seen.get_columns(view.name)] == view.c.keys()
        if alike and tx.dialect.name == "postgresql":
            # Not dropped: somebody may have views of their own on it, or may have been let read it. How it was written, nobody can ask there.
            tx.execute(text(wanted.replace("CREATE", "CREATE OR REPLACE", 1)))
            return
        if alike and seen.get_view_definition(view.name) == wanted:
            return
        tx.execute(text(f"DROP VIEW {view.name}"))
    tx.execute(text(wanted))


# ---------------------------------------------------------------- statements
def insert(tx: Connection, into: Table) -> sqlite.Insert | postgresql.Insert:
    """An insert that may say what to do about a conflict."""
    return sqlite.insert(into) if tx.dialect.name == "sqlite" else postgresql.insert(into)


def name_of_engine(dialect: Dialect, name: OfEngine) -> str:
    """What a table of the engine's is called in SQL. Its name is a contract; only where it stands differs between the databases."""
    return f"interlock_{name}" if dialect.name == "sqlite" else f"interlock.{name}"


def of_engine(dialect: Dialect, name: OfEngine, *columns: str) -> TableClause:
    """A table of the engine's own, to be read."""
    there: list[ColumnClause[Any]] = [column(each, JobId) if each in ("id", "job_id", "redrive_of", "root") else column(each) for each in columns]
    schema, _, called = name_of_engine(dialect, name).rpartition(".")
    return table(called, *there, schema=schema or None)
