"""Callers' own connections: enqueue and commit inside a transaction that the caller opened.

A caller's connection is used in the caller's thread, and never committed, rolled back or kept. Supported are `sqlite3`
(and `pysqlite3`), `psycopg` sync and async, SQLAlchemy's `Connection` and `Session` and their async forms, Django's
connection, and Interlock's `Tx`. They are recognised by the names of their classes, so no library is required.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from ..core.driver import adrive, drive
from ..core.job import Job
from ..core.transition import Move, Take
from ..errors import Unavailable, UsageError
from .commit_boundary import MoveWriter, Run, committing
from .enqueue_plan import Dialect, Rows, Statement, enqueueing
from .open_transactions import OpenTransaction, inside, open_transactions
from .queryfile import to_pyformat
from .retry import cannot_write, write_unavailable
from .tx import PlainTx
from .types import Enqueued, NewJob


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


def admitting(
    store: Session, admit: Callable[[Any, NewJob], None] | None, tx: object
) -> Callable[[NewJob], None] | None:
    """A kind's `admit` function, bound to this transaction."""
    if admit is None:
        return None
    check = admit

    def admitted(job: NewJob) -> None:
        with inside(store, tx):
            check(tx, job)

    return admitted


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


SAVE = Statement("SAVEPOINT interlock_enqueue", {}, answers=False)
UNDO = Statement("ROLLBACK TO SAVEPOINT interlock_enqueue", {}, answers=False)
KEEP = Statement("RELEASE SAVEPOINT interlock_enqueue", {}, answers=False)


def enqueue(
    store: Session, conn: object, jobs: Sequence[NewJob], admit: Callable[[Any, NewJob], None] | None
) -> list[Enqueued]:
    """Enqueue in the caller's transaction. If it fails, roll back to the savepoint before it."""
    run = runner_for(conn, store)
    run(SAVE)
    try:
        answer = drive(enqueueing(store.dialect, jobs, admitting(store, admit, conn)), run)
    except BaseException as error:
        if cannot_write(error):
            # A full disk may have ended the transaction, and its savepoints.
            with suppress(Exception):
                run(UNDO)
                run(KEEP)
            raise write_unavailable(error) from error
        run(UNDO)
        run(KEEP)
        raise
    run(KEEP)
    return answer


async def aenqueue(
    store: Session, conn: object, jobs: Sequence[NewJob], admit: Callable[[Any, NewJob], None] | None
) -> list[Enqueued]:
    """`enqueue`, also for async connections."""
    library, name = _kind_of(conn)
    if library == "sqlalchemy" and name in ("AsyncSession", "AsyncConnection"):
        connection: Any = conn

        def work(sync: object) -> list[Enqueued]:
            return enqueue(store, sync, jobs, admit)

        answers: list[Enqueued] = await connection.run_sync(work)
        return answers
    if (library, name) != ("psycopg", "AsyncConnection"):
        return enqueue(store, conn, jobs, admit)
    if admit is not None:
        raise UsageError(
            "This kind has an `admit` function, which cannot use an async psycopg connection: "
            "enqueue with a sync one, or an AsyncSession."
        )
    return await _enqueue_awaiting(store, conn, jobs)


async def _enqueue_awaiting(store: Session, conn: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
    from psycopg.rows import tuple_row

    _check_psycopg(conn, store)

    async def run(statement: Statement) -> Rows:
        cursor = conn.cursor(row_factory=tuple_row)
        await cursor.execute(to_pyformat(statement.sql), statement.params)
        return await cursor.fetchall() if statement.answers else ()

    _same_instance(await adrive(store.find_instance(), run), store)
    await run(SAVE)
    try:
        answer = await adrive(enqueueing(store.dialect, jobs, None), run)
    except BaseException as error:
        if cannot_write(error):
            with suppress(Exception):
                await run(UNDO)
                await run(KEEP)
            raise write_unavailable(error) from error
        await run(UNDO)
        await run(KEEP)
        raise
    await run(KEEP)
    return answer


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
        connection: Any = tx.connection() if _kind_of(tx)[0] == "sqlalchemy" and hasattr(tx, "add") else tx
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
    match _kind_of(connection)[0]:
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
    library, name = _kind_of(conn)
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
    _same_instance(drive(store.find_instance(), run), store)
    if store.database == "sqlite" and library in ("sqlite3", "pysqlite3", "sqlalchemy"):
        _begin(conn)
    return run


def _same_instance(seen: str | None, store: Session) -> None:
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


def _kind_of(conn: object) -> tuple[str, str]:
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


def _check_psycopg(conn: Any, store: Session) -> None:
    _same_database(store, "postgresql")
    idle = conn.info.transaction_status.name == "IDLE"
    _in_transaction(not (conn.autocommit and idle), "open a transaction first, with conn.transaction()")


def _psycopg(conn: Any, store: Session) -> Run:
    from psycopg.rows import tuple_row

    _check_psycopg(conn, store)

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
