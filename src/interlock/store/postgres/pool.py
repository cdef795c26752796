"""Connections to PostgreSQL, and the transactions on them."""

import atexit
import os
import select
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, cast
from weakref import WeakSet

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ...errors import InterlockError, Unavailable
from ..enqueue_plan import Rows, Statement
from ..retry import cannot_write, causes, retry, write_unavailable
from .connection import execute, is_shared, prepare_fixed_session, prepare_session, runner
from .rollback import rolled_back

T = TypeVar("T")

# Deadlock, serialization failure, lock timeout: the server has rolled the transaction back, and it can be retried.
RETRY_STATES = ("40001", "40P01", "55P03")
TRIES = 5
# A value is too large or nested too deep. The driver raises an operational error, but the data is to blame.
TOO_LARGE = "54"
# The server shuts down, starts up, or has no free connection: it reports that before it ends the connection.
CONNECTION_ENDS = ("08", "57P", "53300")
# A session, or a transaction, that was idle for longer than its timeout.
IDLE_TIMEOUTS = ("25P03", "25P04")

SIZE = 16
CHECK_AFTER = 2.0
"""Seconds of waiting for a connection after which the pool checks whether the server is reachable."""
FULL_POOL_TIMEOUT = 28.0
"""Further seconds to wait if the server is reachable and all connections are in use."""
# These parameters detect an unreachable server even if its network sends nothing back. The URL takes precedence.
NETWORK = {
    "connect_timeout": 3,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


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
    """Opens at the first transaction, and again after `close`.

    It raises `Unavailable` if a connection is lost or none is free.
    """

    def __init__(
        self, url: str, *, check_after: float = CHECK_AFTER, size: int = SIZE, fixed_plans: str | None = None
    ) -> None:
        self.url = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._check_after = check_after
        self._size = size
        self._fixed_plans = fixed_plans
        """The statement that fixes the plans of each connection, for pools that run only our own statements."""
        self._pool: ConnectionPool[Connection[Any]] | None = None
        self._opening = threading.Lock()
        self._pid = os.getpid()
        _exit.add(self)

    # ------------------------------------------------------------ connections
    def _open(self) -> ConnectionPool[Connection[Any]]:
        if pool := self._pool:
            return pool
        self._check_server()
        with self._opening:
            if self._pool is None:
                self._pid = os.getpid()
                # The pool itself checks nothing: it would try its dead connections one by one, with growing pauses.
                given = {"autocommit": True, **self._options()}
                prepare = (
                    partial(prepare_fixed_session, fixed_plans=self._fixed_plans)
                    if self._fixed_plans
                    else prepare_session
                )
                self._pool = ConnectionPool(
                    self.url, min_size=0, max_size=self._size, kwargs=given, configure=prepare, open=True
                )
            return self._pool

    def _options(self) -> dict[str, Any]:
        given = conninfo_to_dict(self.url)
        return {name: value for name, value in NETWORK.items() if name not in given}

    def _check_server(self) -> None:
        """`Unavailable`, with the cause, if no connection can be opened. A pool would not report the cause."""
        try:
            psycopg.connect(self.url, **self._options()).close()
        except psycopg.OperationalError as error:
            raise Unavailable(
                f"PostgreSQL refused the connection: {str(error).strip()}. Is the server running, and is the URL right?"
            ) from error

    def _get(self) -> tuple[ConnectionPool[Connection[Any]], Connection[Any]]:
        """A connection that is open, as far as this can be known without a round trip."""
        while True:
            pool = self._open()
            try:
                conn = self._wait(pool)
            except PoolClosed:
                continue  # another thread found it dead, or closed it
            try:
                if not is_silent(conn):
                    ConnectionPool.check_connection(conn)
            except psycopg.Error:
                # If one connection died while idle, the others probably did too, so the pool is opened anew.
                self._drop(pool)
                pool.putconn(conn)
            else:
                return pool, conn

    def _wait(self, pool: ConnectionPool[Connection[Any]]) -> Connection[Any]:
        try:
            return pool.getconn(self._check_after)
        except PoolTimeout:
            pass
        try:
            self._check_server()
        except Unavailable:
            self._drop(pool)
            raise
        try:
            return pool.getconn(FULL_POOL_TIMEOUT)
        except PoolTimeout as error:
            raise Unavailable(
                f"All {self._size} connections to PostgreSQL have been in use for {FULL_POOL_TIMEOUT:.0f} s. "
                "Check for transactions that stay open."
            ) from error

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
    def connected(self) -> Generator[Connection[Any]]:
        """Yield a connection for the block. Raises `Unavailable` if the block loses it."""
        pool, conn = self._get()
        pid = os.getpid()
        try:
            yield conn
        except Exception as error:
            if os.getpid() == pid and _is_lost(conn, error):
                raise Unavailable(
                    f"The connection to PostgreSQL was lost ({str(error).strip()}): it is unknown whether the last "
                    "statement was carried out. Try again when the server is reachable."
                ) from error
            raise
        finally:
            # In a process that was forked in between, the connection is its parent's.
            if os.getpid() == pid:
                pool.putconn(conn)
                if _exit.begun:
                    self.close()

    # ------------------------------------------------------------ transactions
    @contextmanager
    def begin(self) -> Generator[Connection[Any]]:
        """A transaction. If a statement in it has failed, it never counts as committed."""
        with self.connected() as conn, rolled_back(conn) as block:
            conn.execute("BEGIN")
            yield conn
            block.end()
            _commit(conn)

    def with_fixed_plans(self, fixed_plans: str, *statements: Statement) -> list[Rows]:
        """Run the statements in one transaction with fixed plans, in one round trip; it is retried after a conflict.

        A single statement needs no BEGIN and COMMIT if the plans of its session are fixed.
        """

        def work() -> list[Rows]:
            with self.connected() as conn:
                if self._fixed_plans is not None and not is_shared(conn):
                    if len(statements) == 1:
                        return [runner(conn)(statements[0])]
                    return _in_pipeline(conn, statements)
                return _in_pipeline(conn, [Statement(fixed_plans, {"local": True}), *statements])[1:]

        return self._retry(work)

    def transact(self, work: Callable[[Connection[Any]], T]) -> T:
        """Run `work` in one transaction; it is retried after a conflict."""

        def once() -> T:
            with self.begin() as conn:
                return work(conn)

        return self._retry(once)

    def carry_out(self, work: Callable[[Connection[Any]], T]) -> T:
        """Run `work`, which begins and commits one transaction itself; it is retried after a conflict."""

        def once() -> T:
            with self.connected() as conn, rolled_back(conn) as block:
                result = work(conn)
                block.end()
                return result

        return self._retry(once)

    @staticmethod
    def _retry(work: Callable[[], T]) -> T:
        try:
            return retry(work, should_retry, tries=TRIES)
        except psycopg.Error as error:
            if cannot_write(error):
                raise write_unavailable(error) from error
            if error.sqlstate not in RETRY_STATES:
                raise
            raise Unavailable(
                f"PostgreSQL aborted this transaction {TRIES} times because of concurrent ones "
                f"({str(error).strip()}). Nothing was stored; try again later."
            ) from error


_exit = _Exit()


def _in_pipeline(conn: Connection[Any], statements: Sequence[Statement]) -> list[Rows]:
    """Run the statements in one transaction and one round trip."""
    with conn.pipeline():
        with conn.transaction():
            cursors = [execute(conn, s.sql, cast(dict[str, Any], s.params)) for s in statements]
        return [cursor.fetchall() if s.answers else () for cursor, s in zip(cursors, statements, strict=True)]


def is_silent(conn: Connection[Any]) -> bool:
    """Whether nothing has arrived on the idle connection. If the server has closed it, something has."""
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return not poll.poll(0)


def _commit(conn: Connection[Any]) -> None:
    # The server answers such a COMMIT with a rollback, and no error.
    if conn.info.transaction_status is TransactionStatus.INERROR:
        raise InterlockError(
            "A statement in this transaction failed and the block ignored the error: nothing of the block was stored."
        )
    conn.execute("COMMIT")


def _is_lost(conn: Connection[Any], error: Exception) -> bool:
    """Whether this connection is lost. Other errors of a caller's code propagate unchanged."""
    errors = [each for each in causes(error) if isinstance(each, psycopg.Error)]
    if not conn.closed and any((each.sqlstate or "").startswith(CONNECTION_ENDS) for each in errors):
        with suppress(psycopg.Error):
            conn.execute("")
    return conn.closed and bool(errors)


def should_retry(error: Exception) -> bool:
    """Whether the transaction can be retried after a conflict, also if a caller's library wraps the driver's error."""
    errors = [each for each in (error, error.__cause__) if isinstance(each, psycopg.Error)]
    return any(each.sqlstate in RETRY_STATES or _is_taken(each) for each in errors)


def _is_taken(error: psycopg.Error) -> bool:
    """Whether another audit note has taken our number. A snapshot older than the lock does not show that note.

    If the audit is partitioned, the error names the partition.
    """
    table = error.diag.table_name or ""
    is_audit = table == "audit" or table.startswith("audit_")
    return collides(error) and is_audit and error.diag.constraint_name == f"{table}_pkey"


def collides(error: BaseException) -> bool:
    """Whether another writer's row has our key. Then nothing is wrong with our data."""
    return isinstance(error, psycopg.errors.UniqueViolation)


def was_idle_too_long(error: Exception) -> bool:
    """Whether the server ended the session because its transaction was idle for too long."""
    return any(isinstance(each, psycopg.Error) and each.sqlstate in IDLE_TIMEOUTS for each in causes(error))


def is_database_error(error: Exception) -> bool:
    """Whether the database or our code is to blame, not a value that it cannot store."""
    if isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(TOO_LARGE):
        return False
    return isinstance(error, Unavailable) or not isinstance(
        error, psycopg.DataError | psycopg.IntegrityError | InterlockError | ValueError
    )
