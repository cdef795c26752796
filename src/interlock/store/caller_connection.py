"""Callers' own connections: commits inside a transaction that the caller opened. `caller_enqueue` enqueues there.

A caller's connection is used in the caller's thread, and never committed, rolled back or kept. Supported are `sqlite3`
(and `pysqlite3`), `psycopg` sync and async, SQLAlchemy's `Connection` and `Session` and their async forms, Django's
connection, and Interlock's `Tx`. They are recognised by the names of their classes, so no library is required.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..core.driver import drive
from ..core.job import Job
from ..core.transition import Move, Take
from ..errors import Unavailable, UsageError
from .commit_boundary import MoveWriter, Run, committing
from .enqueue_plan import Dialect, Rows, Statement
from .open_transactions import OpenTransaction, open_transactions
from .queryfile import to_pyformat
from .retry import cannot_write, write_unavailable
from .tx import PlainTx


class Session(Protocol):
    """The part of a store that a caller's connection needs."""

    dialect: Dialect
    driver: str
    """The module whose connections reach this database: sqlite3, pysqlite3 or psycopg."""
    database: str
    """`sqlite` or `postgresql`."""

    def instance(self) -> str: ...
    def find_instance(self) -> Generator[Statement, Rows, str | None]:
        """Read the id of the database that a connection is open to; None if there is no Interlock schema in it."""
        ...


# ---------------------------------------------------------------- the open transaction
def joined(store: Session) -> OpenTransaction | None:
    """Return the open transaction on the store's database that this code runs in, even of another app or schema."""
    return next((each for each in open_transactions() if each.store is store or _reaches(each, store)), None)


def _reaches(each: OpenTransaction, store: Session) -> bool:
    other: Session = each.store
    if (other.database, other.driver) != (store.database, store.driver):
        return False
    if not each.here:
        return other.instance() == store.instance()
    try:
        runner_for(each.handle, store)
    except UsageError:
        return False
    return True


def reading(store: Session) -> Run | None:
    """Return a reader on this code's open transaction; None if there is none, or if another thread opened it."""
    if not open_transactions():
        return None
    found = joined(store)
    return runner_for(found.handle, store) if found is not None and found.here else None


def commit(  # noqa: PLR0917
    store: Session,
    writer: MoveWriter,
    transaction: Callable[[], AbstractContextManager[Any]],
    move: Move | Take,
    body: Callable[[Any, Job], None],
    timeout: float,
) -> None:
    """Carry out a move in the caller's own transaction, which ends with the caller's own `with` block."""
    with transaction() as tx:
        connection: Any = tx.connection() if kind_of(tx)[0] == "sqlalchemy" and hasattr(tx, "add") else tx
        try:
            committing(writer, runner_for(tx, store), move, body, tx, timeout)
        except Exception as error:
            if _is_lost(connection):
                raise Unavailable(
                    f"The connection of your transaction was lost ({error}): the job was not moved. Try again later."
                ) from error
            if cannot_write(error):
                raise write_unavailable(error) from error
            raise


def _is_lost(connection: Any) -> bool:
    """Whether the connection was lost. A connection that was closed on purpose was not."""
    match kind_of(connection)[0]:
        case "psycopg":
            return bool(connection.broken)
        case "sqlalchemy":
            return bool(connection.invalidated)
        case "django":
            return bool(getattr(connection.connection, "broken", False))
        case _:
            return False


# ---------------------------------------------------------------- recognising a connection
def runner_for(conn: object, store: Session) -> Run:
    """Return a function that runs statements on the caller's connection.

    Raise `UsageError` and do nothing if the connection cannot be used.
    """
    library, name = kind_of(conn)
    if isinstance(conn, PlainTx):
        return runner_for(PlainTx.connection(conn), store)
    if library in ("sqlite3", "pysqlite3") and name == "Connection":
        run = _sqlite(conn, library, store)
    elif library == "psycopg" and name == "Connection":
        run = _psycopg(conn, store)
    elif library == "sqlalchemy" and name in ("Session", "Connection", "scoped_session"):
        run = _sqlalchemy(conn, store)
    elif library == "django":
        run = _django(conn, store)
    elif name in ("AsyncConnection", "AsyncSession", "async_scoped_session"):
        raise UsageError(f"{library}'s {name} is async: use `await kind.using(conn=…).aenqueue(…)`.")
    else:
        raise UsageError(
            f"conn= does not take a {type(conn).__module__}.{type(conn).__name__}. It takes a connection of sqlite3, "
            "psycopg, SQLAlchemy or Django, or a Tx of app.transaction()."
        )
    check_instance(drive(store.find_instance(), run), store)
    if store.database == "sqlite" and library in ("sqlite3", "pysqlite3", "sqlalchemy"):
        _begin(conn)
    return run


def check_instance(seen: str | None, store: Session) -> None:
    """Raise `UsageError` if a connection leads to another database than the store's."""
    if seen != store.instance():
        raise UsageError(
            "conn= is a connection to another database than this app's, so this app's workers would not find the job. "
            "Nothing was stored."
        )


def _begin(conn: Any) -> None:
    """Begin a transaction for writing.

    SQLite's drivers begin one only before a plain write, and ours starts with a savepoint.
    """
    if hasattr(conn, "exec_driver_sql") or hasattr(conn, "add"):
        connection = conn.connection() if hasattr(conn, "add") else conn
        if not connection.connection.driver_connection.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif not conn.in_transaction:
        conn.execute("BEGIN IMMEDIATE")


def kind_of(conn: object) -> tuple[str, str]:
    """The library and the class of a connection, also if it is a subclass of the caller's own."""
    for cls in type(conn).__mro__:
        library = cls.__module__.split(".")[0]
        if library == "django":
            return library, cls.__name__
        if library in ("sqlite3", "pysqlite3", "psycopg", "sqlalchemy") and cls.__name__ in _NAMES:
            return library, cls.__name__
    return type(conn).__module__.split(".")[0], type(conn).__name__


_NAMES = frozenset(
    {"Connection", "AsyncConnection", "Session", "AsyncSession", "scoped_session", "async_scoped_session"}
)


def _same_database(store: Session, database: str) -> None:
    if database != store.database:
        raise UsageError(
            f"conn= is a {database} connection, but this app's jobs are in {store.database}. Nothing was stored."
        )


def _in_transaction(yes: bool, how: str) -> None:
    if not yes:
        raise UsageError(f"conn= commits each statement by itself, so the job could outlive your rollback: {how}.")


def _sqlite(conn: Any, library: str, store: Session) -> Run:
    _same_database(store, "sqlite")
    if library != store.driver:
        raise UsageError(
            f"conn= is of {library}, but this app opens the file with {store.driver}; two SQLite libraries in one "
            "process drop each other's locks. Use the same one."
        )
    # Newer drivers have `autocommit`, which leaves `isolation_level` as it was.
    by_itself = conn.isolation_level is None or getattr(conn, "autocommit", None) is True
    _in_transaction(conn.in_transaction or not by_itself, 'begin a transaction first, with conn.execute("BEGIN")')

    def run(statement: Statement) -> Rows:
        if statement.many:
            conn.executemany(statement.sql, statement.params)
            return ()
        cursor = conn.execute(statement.sql, statement.params)
        return [tuple(row) for row in cursor.fetchall()] if statement.answers else ()

    return run


def check_psycopg(conn: Any, store: Session) -> None:
    """Raise `UsageError` if a psycopg connection, sync or async, cannot be used."""
    _same_database(store, "postgresql")
    idle = conn.info.transaction_status.name == "IDLE"
    _in_transaction(not (conn.autocommit and idle), "open a transaction first, with conn.transaction()")


def _psycopg(conn: Any, store: Session) -> Run:
    from psycopg.rows import tuple_row

    check_psycopg(conn, store)

    def run(statement: Statement) -> Rows:
        # The caller may have set another row factory; we read tuples.
        cursor = conn.cursor(row_factory=tuple_row)
        cursor.execute(to_pyformat(statement.sql), statement.params)
        return cursor.fetchall() if statement.answers else ()

    return run


def _sqlalchemy(conn: Any, store: Session) -> Run:
    from sqlalchemy import text

    connection = conn.connection() if hasattr(conn, "add") else conn
    _same_database(store, connection.dialect.name)
    # Some dialects report the server's level here even if the driver commits by itself, so both are checked.
    autocommit = (
        connection.get_isolation_level() == "AUTOCOMMIT"
        or getattr(connection.connection.dbapi_connection, "autocommit", False) is True
    )
    _in_transaction(not autocommit, "use an engine without isolation_level='AUTOCOMMIT'")

    def run(statement: Statement) -> Rows:
        # `::` is a cast, not a parameter.
        result = connection.execute(text(statement.sql.replace("::", r"\:\:")), statement.params)
        return [tuple(row) for row in result.fetchall()] if statement.answers and not statement.many else ()

    return run


def _django(conn: Any, store: Session) -> Run:
    _same_database(store, conn.vendor)
    _in_transaction(conn.in_atomic_block or not conn.get_autocommit(), "enqueue inside transaction.atomic()")

    def run(statement: Statement) -> Rows:
        with conn.cursor() as cursor:
            if statement.many:
                cursor.executemany(to_pyformat(statement.sql), statement.params)
                return ()
            cursor.execute(to_pyformat(statement.sql), statement.params)
            return cursor.fetchall() if statement.answers else ()

    return run
