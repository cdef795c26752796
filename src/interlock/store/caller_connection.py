"""Callers' own connections: enqueue and commit inside a transaction that is not ours.

A borrowed connection is used in its caller's thread, never committed, rolled back or kept. Known are `sqlite3` (and `pysqlite3`), `psycopg` sync and async,
SQLAlchemy's `Connection` and `Session` and their async forms, Django's connection, and our own `Tx`. They are recognised by their classes' names, so that none
has to be installed.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol, TypeVar

from ..errors import Unavailable, UsageError
from ..job import Job
from ..move import Move, Take
from ..records import Enqueued, NewJob
from .again import is_unable, unable
from .commit import Run, Settling, committing
from .enqueue import Dialect, Rows, Statement, enqueueing
from .inside import OpenTransaction, inside, open_transactions
from .queryfile import to_pyformat
from .tx import PlainTx

T = TypeVar("T")


class Lender(Settling, Protocol):
    """A store, as a borrowed connection needs it."""

    dialect: Dialect
    driver: str
    """The module whose connections reach this database: sqlite3, pysqlite3 or psycopg."""
    database: str
    """`sqlite` or `postgresql`."""

    def instance(self) -> str: ...
    def whose(self) -> Generator[Statement, Rows, str | None]:
        """The instance that a connection sees; None if there is no Interlock schema in its database."""
        ...


# ---------------------------------------------------------------- running a plan
def drive(plan: Generator[Statement, Rows, T], run: Run) -> T:
    """Run a plan's statements until it answers."""
    try:
        statement = next(plan)
        while True:
            statement = plan.send(run(statement))
    except StopIteration as answer:
        value: T = answer.value
        return value


async def adrive(plan: Generator[Statement, Rows, T], run: Callable[[Statement], Awaitable[Rows]]) -> T:
    try:
        statement = next(plan)
        while True:
            statement = plan.send(await run(statement))
    except StopIteration as answer:
        value: T = answer.value
        return value


def admitting(store: Lender, admit: Callable[[Any, NewJob], None] | None, tx: object) -> Callable[[NewJob], None] | None:
    """The admission of a kind, in this transaction."""
    if admit is None:
        return None
    judge = admit

    def admitted(job: NewJob) -> None:
        with inside(store, tx):
            judge(tx, job)

    return admitted


# ---------------------------------------------------------------- the open transaction
def joined(store: Lender) -> OpenTransaction | None:
    """The open transaction on the store's database that this code runs in, even of another app or schema."""
    return next((each for each in open_transactions() if each.store is store or _reaches(each, store)), None)


def _reaches(each: OpenTransaction, store: Lender) -> bool:
    other: Lender = each.store
    if (other.database, other.driver) != (store.database, store.driver):
        return False
    if not each.here:
        return other.instance() == store.instance()
    try:
        borrow(each.handle, store)
    except UsageError:
        return False
    return True


def reading(store: Lender) -> Run | None:
    """Runs reads in the open transaction that this code runs in; None if there is none, or another thread opened it."""
    if not open_transactions():
        return None
    found = joined(store)
    return borrow(found.handle, store) if found is not None and found.here else None


SAVE = Statement("SAVEPOINT interlock_enqueue", {}, answers=False)
UNDO = Statement("ROLLBACK TO SAVEPOINT interlock_enqueue", {}, answers=False)
KEEP = Statement("RELEASE SAVEPOINT interlock_enqueue", {}, answers=False)


def enqueue(store: Lender, conn: object, jobs: Sequence[NewJob], admit: Callable[[Any, NewJob], None] | None) -> list[Enqueued]:
    """Enqueue in the caller's transaction. If it cannot be, the transaction is as it was."""
    run = borrow(conn, store)
    run(SAVE)
    try:
        answer = drive(enqueueing(store.dialect, jobs, admitting(store, admit, conn)), run)
    except BaseException as error:
        if is_unable(error):
            # A full disk may have ended the transaction, and its savepoints.
            with suppress(Exception):
                run(UNDO)
                run(KEEP)
            raise unable(error) from error
        run(UNDO)
        run(KEEP)
        raise
    run(KEEP)
    return answer


async def aenqueue(store: Lender, conn: object, jobs: Sequence[NewJob], admit: Callable[[Any, NewJob], None] | None) -> list[Enqueued]:
    """`enqueue` for connections that are awaited; for the others the same as it."""
    library, name = _kind_of(conn)
    if library == "sqlalchemy" and name in ("AsyncSession", "AsyncConnection"):
        lent: Any = conn

        def work(sync: object) -> list[Enqueued]:
            return enqueue(store, sync, jobs, admit)

        answers: list[Enqueued] = await lent.run_sync(work)
        return answers
    if (library, name) != ("psycopg", "AsyncConnection"):
        return enqueue(store, conn, jobs, admit)
    if admit is not None:
        raise UsageError("this kind has an `admit` function, which cannot use an async psycopg connection; enqueue with a sync one, or an AsyncSession")
    return await _enqueue_awaiting(store, conn, jobs)


async def _enqueue_awaiting(store: Lender, conn: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
    from psycopg.rows import tuple_row

    _check_psycopg(conn, store)

    async def run(statement: Statement) -> Rows:
        cursor = conn.cursor(row_factory=tuple_row)
        await cursor.execute(to_pyformat(statement.sql), statement.params)
        return await cursor.fetchall() if statement.answers else ()

    _same_instance(await adrive(store.whose(), run), store)
    await run(SAVE)
    try:
        answer = await adrive(enqueueing(store.dialect, jobs, None), run)
    except BaseException as error:
        if is_unable(error):
            with suppress(Exception):
                await run(UNDO)
                await run(KEEP)
            raise unable(error) from error
        await run(UNDO)
        await run(KEEP)
        raise
    await run(KEEP)
    return answer


def commit(
    store: Lender, transaction: Callable[[], AbstractContextManager[Any]], move: Move | Take, body: Callable[[Any, Job], None], timeout: float,
) -> None:
    """A move in the caller's own transaction, which ends with the caller's own `with` block."""
    with transaction() as tx:
        lent: Any = tx.connection() if _kind_of(tx)[0] == "sqlalchemy" and hasattr(tx, "add") else tx
        try:
            committing(store, borrow(tx, store), move, body, tx, timeout)
        except Exception as error:
            if _is_lost(lent):
                raise Unavailable(f"the connection of your transaction was lost ({error}): the job was not moved. Send it again later.") from error
            if is_unable(error):
                raise unable(error) from error
            raise


def _is_lost(lent: Any) -> bool:
    """Has this connection broken under its user? One that was closed on purpose has not."""
    match _kind_of(lent)[0]:
        case "psycopg":
            return bool(lent.broken)
        case "sqlalchemy":
            return bool(lent.invalidated)
        case "django":
            return bool(getattr(lent.connection, "broken", False))
        case _:
            return False


# ---------------------------------------------------------------- recognising a connection
def borrow(conn: object, store: Lender) -> Run:
    """What runs statements on the caller's connection. `UsageError`, and nothing done, if it cannot be the right one."""
    library, name = _kind_of(conn)
    if isinstance(conn, PlainTx):
        return borrow(PlainTx.connection(conn), store)
    if library in ("sqlite3", "pysqlite3") and name == "Connection":
        run = _sqlite(conn, library, store)
    elif library == "psycopg" and name == "Connection":
        run = _psycopg(conn, store)
    elif library == "sqlalchemy" and name in ("Session", "Connection", "scoped_session"):
        run = _sqlalchemy(conn, store)
    elif library == "django":
        run = _django(conn, store)
    elif name in ("AsyncConnection", "AsyncSession", "async_scoped_session"):
        raise UsageError(f"{library}'s {name} is awaited: use `await kind.using(conn=…).aenqueue(…)`")
    else:
        raise UsageError(
            f"conn= does not take a {type(conn).__module__}.{type(conn).__name__}; it takes a connection of sqlite3, psycopg, SQLAlchemy or Django, "
            "or a Tx of app.transaction()")
    _same_instance(drive(store.whose(), run), store)
    if store.database == "sqlite" and library in ("sqlite3", "pysqlite3", "sqlalchemy"):
        _begin(conn)
    return run


def _same_instance(seen: str | None, store: Lender) -> None:
    if seen != store.instance():
        raise UsageError("conn= is a connection to another database than this app's, so the job would not be stored where its workers look; nothing was stored")


def _begin(conn: Any) -> None:
    """SQLite's libraries begin by themselves only before a plain write, and ours begins with a savepoint. Immediate, since we are going to write."""
    if hasattr(conn, "exec_driver_sql") or hasattr(conn, "add"):
        lent = conn.connection() if hasattr(conn, "add") else conn
        if not lent.connection.driver_connection.in_transaction:
            lent.exec_driver_sql("BEGIN IMMEDIATE")
    elif not conn.in_transaction:
        conn.execute("BEGIN IMMEDIATE")


def _kind_of(conn: object) -> tuple[str, str]:
    """The library and the class a connection is of, also when it is a subclass of the caller's own."""
    for cls in type(conn).__mro__:
        library = cls.__module__.split(".")[0]
        if library == "django":
            return library, cls.__name__
        if library in ("sqlite3", "pysqlite3", "psycopg", "sqlalchemy") and cls.__name__ in _NAMES:
            return library, cls.__name__
    return type(conn).__module__.split(".")[0], type(conn).__name__


_NAMES = frozenset({"Connection", "AsyncConnection", "Session", "AsyncSession", "scoped_session", "async_scoped_session"})


def _same_database(store: Lender, database: str) -> None:
    if database != store.database:
        raise UsageError(f"conn= is a {database} connection, but this app's jobs are in {store.database}; nothing was stored")


def _in_transaction(yes: bool, how: str) -> None:
    if not yes:
        raise UsageError(f"conn= commits each statement by itself, so the job could outlive your rollback; {how}")


def _sqlite(conn: Any, library: str, store: Lender) -> Run:
    _same_database(store, "sqlite")
    if library != store.driver:
        raise UsageError(
            f"conn= is of {library}, but this app opens the file with {store.driver}; two SQLite libraries in one process drop each other's locks. Use one.")
    # `autocommit` is a newer way to say it, and leaves `isolation_level` as it was.
    by_itself = conn.isolation_level is None or getattr(conn, "autocommit", None) is True
    _in_transaction(conn.in_transaction or not by_itself, 'begin a transaction first, with conn.execute("BEGIN")')

    def run(statement: Statement) -> Rows:
        if statement.many:
            conn.executemany(statement.sql, statement.params)
            return ()
        cursor = conn.execute(statement.sql, statement.params)
        return [tuple(row) for row in cursor.fetchall()] if statement.answers else ()

    return run


def _check_psycopg(conn: Any, store: Lender) -> None:
    _same_database(store, "postgresql")
    idle = conn.info.transaction_status.name == "IDLE"
    _in_transaction(not (conn.autocommit and idle), "open a transaction first, with conn.transaction()")


def _psycopg(conn: Any, store: Lender) -> Run:
    from psycopg.rows import tuple_row

    _check_psycopg(conn, store)

    def run(statement: Statement) -> Rows:
        # The caller's row factory is the caller's: ours are tuples.
        cursor = conn.cursor(row_factory=tuple_row)
        cursor.execute(to_pyformat(statement.sql), statement.params)
        return cursor.fetchall() if statement.answers else ()

    return run


def _sqlalchemy(conn: Any, store: Lender) -> Run:
    from sqlalchemy import text

    lent = conn.connection() if hasattr(conn, "add") else conn
    _same_database(store, lent.dialect.name)
    # Some dialects report the server's level here, whatever the driver does, so both are asked.
    autocommit = lent.get_isolation_level() == "AUTOCOMMIT" or getattr(lent.connection.dbapi_connection, "autocommit", False) is True
    _in_transaction(not autocommit, "use an engine without isolation_level='AUTOCOMMIT'")

    def run(statement: Statement) -> Rows:
        # `::` is a cast here, not a parameter.
        result = lent.execute(text(statement.sql.replace("::", r"\:\:")), statement.params)
        return [tuple(row) for row in result.fetchall()] if statement.answers and not statement.many else ()

    return run


def _django(conn: Any, store: Lender) -> Run:
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
