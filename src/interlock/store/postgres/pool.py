"""Connections to PostgreSQL, and the transactions on them."""

import atexit
import os
import select
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeVar, cast
from weakref import WeakSet

import psycopg
from psycopg import Connection, RawCursor
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ...errors import InterlockError, Unavailable
from ..again import again, causes, is_unable, unable
from ..enqueue import Rows, Statement
from ..queryfile import to_positional
from ..tx import check_process

T = TypeVar("T")
Run = Callable[[Statement], Rows]

# Deadlock, serialization failure, lock timeout: the server asks for the same transaction again, and nothing of it has happened.
AGAIN = ("40001", "40P01", "55P03")
TRIES = 5
# A value is too large or nested too deep. The driver counts this as an operational error, but the data is to blame.
TOO_MUCH = "54"
# The server goes, is not there yet, or has no room: it says so before it ends the connection.
GONE = ("08", "57P", "53300")
# A session, or a transaction, that stood still for longer than it may.
OVERSLEPT = ("25P03", "25P04")

SIZE = 16
PATIENCE = 2.0
"""Seconds until a connection that does not come makes us look whether the server is there."""
CROWDED = 28.0
"""Seconds to wait on where it is, and all connections are lent."""
# A server that is away is noticed, also where nothing comes back from its network; what the URL says itself goes before.
NETWORK = {"connect_timeout": 3, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15_000}


@lru_cache(maxsize=512)
def native(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """A statement of queries.sql as the server itself takes it, and the names of its values in order; they travel as parameters only."""
    text, names = to_positional(sql)
    return text.encode(), names


def execute(conn: Connection[Any], sql: str, params: Mapping[str, Any]) -> RawCursor[Any]:
    """Run one statement of queries.sql. Its text is not read by the driver, which would do so each time: ours are longer than what it remembers."""
    text, names = native(sql)
    return RawCursor(conn).execute(text, [params[name] for name in names], prepare=True)


def prepare_session(conn: Connection[Any]) -> None:
    """Set up a new connection: its time zone is UTC, and behind a pooler it prepares no statements.

    A statement sets the time zone, because PgBouncer refuses `options` at startup; PgBouncer then preserves it.
    """
    conn.execute("SET TimeZone TO 'UTC'")
    if is_pooled(conn):
        # The next transaction may run in another session, which has none of our prepared statements.
        conn.prepare_threshold = None


def is_pooled(conn: Connection[Any]) -> bool:
    """Whether a pooler such as PgBouncer is between us and the server: it reports a different process id."""
    row = conn.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != conn.info.backend_pid


def runner(conn: Connection[Any]) -> Run:
    """What runs statements on this connection."""

    def run(statement: Statement) -> Rows:
        cursor = execute(conn, statement.sql, cast(dict[str, Any], statement.params))
        return cursor.fetchall() if statement.answers else ()

    return run


class _Exit:
    """Closes the pools of this process when it exits.

    Python stops a pool's threads after this. From 3.13 on, a pool that is still open waits 5 seconds for each of them
    in vain.
    """

    def __init__(self) -> None:
        self.begun = False
        self._open: WeakSet[Pool] = WeakSet()
        atexit.register(self._close)

    def add(self, pool: "Pool") -> None:
        self._open.add(pool)

    def _close(self) -> None:
        self.begun = True
        for pool in list(self._open):
            pool.close()


class Pool:
    """Opens at the first transaction, and again after `close`. A connection that is lost, or cannot be had, is `Unavailable`."""

    def __init__(self, url: str, *, patience: float = PATIENCE, size: int = SIZE) -> None:
        self.url = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._patience = patience
        self._size = size
        self._pool: ConnectionPool[Connection[Any]] | None = None
        self._opening = threading.Lock()
        self._pid = os.getpid()
        _exit.add(self)

    # ------------------------------------------------------------ connections
    def _open(self) -> ConnectionPool[Connection[Any]]:
        if pool := self._pool:
            return pool
        self._knock()
        with self._opening:
            if self._pool is None:
                self._pid = os.getpid()
                # No check by the pool itself, which would try its dead connections one by one, waiting longer after each.
                given = {"autocommit": True, **self._options()}
                self._pool = ConnectionPool(
                    self.url, min_size=0, max_size=self._size, kwargs=given, configure=prepare_session, open=True)
            return self._pool

    def _options(self) -> dict[str, Any]:
        given = conninfo_to_dict(self.url)
        return {name: value for name, value in NETWORK.items() if name not in given}

    def _knock(self) -> None:
        """Does the server let us in? Now, while the cause is at hand: a pool would only say that it got no connection."""
        try:
            psycopg.connect(self.url, **self._options()).close()
        except psycopg.OperationalError as error:
            raise Unavailable(f"PostgreSQL does not let us in: {str(error).strip()}. Is the server running, and is the URL right?") from error

    def _get(self) -> tuple[ConnectionPool[Connection[Any]], Connection[Any]]:
        """A connection that, as far as can be known without asking the server, lives."""
        while True:
            pool = self._open()
            try:
                conn = self._wait(pool)
            except PoolClosed:
                continue  # by who found it dead, or by `close`
            try:
                if not _silent(conn):
                    ConnectionPool.check_connection(conn)
            except psycopg.Error:
                # Where one has died while it lay idle, so have the others, most likely. Whether there is a server is asked anew.
                self._drop(pool)
                pool.putconn(conn)
            else:
                return pool, conn

    def _wait(self, pool: ConnectionPool[Connection[Any]]) -> Connection[Any]:
        try:
            return pool.getconn(self._patience)
        except PoolTimeout:
            pass
        try:
            self._knock()
        except Unavailable:
            self._drop(pool)
            raise
        try:
            return pool.getconn(CROWDED)
        except PoolTimeout as error:
            raise Unavailable(
                f"all {self._size} connections to PostgreSQL have been in use for {CROWDED:.0f} s. "
                "Check for transactions that stay open.") from error

    def _drop(self, pool: ConnectionPool[Connection[Any]]) -> None:
        with self._opening:
            if self._pool is pool:
                self._pool = None
        pool.close(timeout=0)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        # In a forked process, the connections are its parent's.
        if pool is not None and os.getpid() == self._pid:
            pool.close()

    @contextmanager
    def _lend(self) -> Generator[Connection[Any]]:
        pool, conn = self._get()
        pid = os.getpid()
        try:
            yield conn
        except Exception as error:
            if os.getpid() == pid and _is_lost(conn, error):
                raise Unavailable(f"the connection to PostgreSQL was lost ({str(error).strip()}): nobody knows whether the last thing was done. "
                                  "Send it again when the server is back.") from error
            raise
        finally:
            # In a process that was forked meanwhile, the connection is its parent's.
            if os.getpid() == pid:
                pool.putconn(conn)
                if _exit.begun:
                    self.close()

    # ------------------------------------------------------------ transactions
    @contextmanager
    def begin(self) -> Generator[Connection[Any]]:
        """A transaction. One in which a statement has failed is never taken for committed."""
        with self._lend() as conn:
            conn.execute("BEGIN")
            pid, ours = os.getpid(), False
            try:
                yield conn
                check_process(pid)
                ours = True
                _commit(conn)
            except BaseException as error:
                # An error of the caller's code about another database does not affect our transaction.
                ours = ours or conn.info.transaction_status is TransactionStatus.INERROR
                # Where the connection is gone the server has rolled back, and what was raised is to be told, not this.
                with suppress(psycopg.Error):
                    if os.getpid() == pid:
                        conn.rollback()
                if ours and is_unable(error):
                    raise unable(error) from error
                raise

    def steadily(self, steady: str, *statements: Statement) -> list[Rows]:
        """One transaction with plans that stay, sent in one go; again in place where the server asks for that."""

        def work() -> list[Rows]:
            with self._lend() as conn, conn.pipeline():
                with conn.transaction():
                    execute(conn, steady, {})
                    cursors = [execute(conn, s.sql, cast(dict[str, Any], s.params)) for s in statements]
                return [cursor.fetchall() if s.answers else () for cursor, s in zip(cursors, statements, strict=True)]

        return self._again(work)

    def transact(self, work: Callable[[Connection[Any]], T]) -> T:
        """`work` in one transaction; again in place where the server asks for that."""

        def once() -> T:
            with self.begin() as conn:
                return work(conn)

        return self._again(once)

    @staticmethod
    def _again(work: Callable[[], T]) -> T:
        try:
            return again(work, asks_again, TRIES)
        except psycopg.Error as error:
            if is_unable(error):
                raise unable(error) from error
            if error.sqlstate not in AGAIN:
                raise
            raise Unavailable(
                f"PostgreSQL aborted this transaction {TRIES} times because of concurrent ones "
                f"({str(error).strip()}). Nothing was stored; try again later.") from error


_exit = _Exit()


def _silent(conn: Connection[Any]) -> bool:
    """Has nothing come from the server while the connection lay idle? One that the server has closed has something to say; asking costs a round trip."""
    heard = select.poll()
    heard.register(conn.fileno(), select.POLLIN)
    return not heard.poll(0)


def _commit(conn: Connection[Any]) -> None:
    # The server answers such a COMMIT with a rollback, and no error.
    if conn.info.transaction_status is TransactionStatus.INERROR:
        raise InterlockError("a statement in this transaction failed, and the block went on as if it had not: nothing of the block was stored")
    conn.execute("COMMIT")


def _is_lost(conn: Connection[Any], error: Exception) -> bool:
    """Is this connection gone? What a caller's code raised by itself goes through as long as ours is there, whatever it says."""
    told = [each for each in causes(error) if isinstance(each, psycopg.Error)]
    if not conn.closed and any((each.sqlstate or "").startswith(GONE) for each in told):
        with suppress(psycopg.Error):
            conn.execute("")
    return conn.closed and bool(told)


def asks_again(error: Exception) -> bool:
    """Does the server ask for the same transaction again? Also through a caller's library, which wraps what the driver raised."""
    told = [each for each in (error, error.__cause__) if isinstance(each, psycopg.Error)]
    return any(each.sqlstate in AGAIN or _is_taken(each) for each in told)


def _is_taken(error: psycopg.Error) -> bool:
    """Whether another remark has taken our number. A snapshot older than the lock does not show that remark."""
    return collides(error) and (error.diag.table_name, error.diag.constraint_name) == ("audit", "audit_pkey")


def collides(error: BaseException) -> bool:
    """Whether another writer's row has our key. Then nothing is wrong with our data."""
    return isinstance(error, psycopg.errors.UniqueViolation)


def overslept(error: Exception) -> bool:
    """Has the server ended the session because its transaction stood still?"""
    return any(isinstance(each, psycopg.Error) and each.sqlstate in OVERSLEPT for each in causes(error))


def is_unwell(error: Exception) -> bool:
    """Is the database unwell, or our code, rather than a value that it cannot store? Then no row is to blame."""
    if isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(TOO_MUCH):
        return False
    return isinstance(error, Unavailable) or not isinstance(error, psycopg.DataError | psycopg.IntegrityError | InterlockError | ValueError)
