"""Connections to PostgreSQL, and the transactions on them."""

import random
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar, cast

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from ...errors import InterlockError, Unavailable
from ..enqueue import Rows, Statement
from ..queryfile import to_pyformat

T = TypeVar("T")
Run = Callable[[Statement], Rows]

# Deadlock, serialization failure, lock timeout: the server asks for the same transaction again, and nothing of it has happened.
AGAIN = ("40001", "40P01", "55P03")
TRIES = 5


@lru_cache(maxsize=512)
def native(sql: str) -> bytes:
    """A statement of queries.sql as psycopg takes it; values travel as parameters only."""
    return to_pyformat(sql).encode()


def runner(conn: Connection[Any]) -> Run:
    """What runs statements on this connection."""

    def run(statement: Statement) -> Rows:
        cursor = conn.execute(native(statement.sql), cast(dict[str, Any], statement.params), prepare=True)
        return cursor.fetchall() if statement.answers else ()

    return run


class Pool:
    """Opens at the first transaction, and again after `close`."""

    def __init__(self, url: str) -> None:
        self.url = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._pool: ConnectionPool[Connection[Any]] | None = None
        self._opening = threading.Lock()

    def _open(self) -> ConnectionPool[Connection[Any]]:
        if pool := self._pool:
            return pool
        with self._opening:
            if self._pool is None:
                # Times are read as they are stored; the zone is a parameter that poolers pass on.
                options = f"{conninfo_to_dict(self.url).get('options', '')} -c TimeZone=UTC"
                try:
                    psycopg.connect(self.url, options=options, connect_timeout=10).close()
                except psycopg.OperationalError as error:
                    # Now, while the cause is at hand: a pool would only say that it got no connection.
                    raise Unavailable(f"PostgreSQL does not let us in: {str(error).strip()}. Is the server running, and is the URL right?") from error
                # Each connection is asked for a sign of life before it is lent: one that died while it lay idle is replaced.
                self._pool = ConnectionPool(
                    self.url, min_size=0, max_size=16, kwargs={"autocommit": True, "options": options}, open=True, timeout=30,
                    check=ConnectionPool.check_connection)
            return self._pool

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    @contextmanager
    def begin(self) -> Generator[Connection[Any]]:
        """A transaction. One in which a statement has failed is never taken for committed."""
        with self._open().connection() as conn:
            conn.execute("BEGIN")
            try:
                yield conn
                _commit(conn)
            except BaseException:
                if not conn.closed:
                    conn.rollback()
                raise

    def steadily(self, steady: str, *statements: Statement) -> list[Rows]:
        """One transaction with plans that stay, sent in one go; again in place where the server asks for that."""

        def work() -> list[Rows]:
            with self._open().connection() as conn, conn.pipeline():
                with conn.transaction():
                    conn.execute(native(steady), prepare=True)
                    cursors = [conn.execute(native(s.sql), cast(dict[str, Any], s.params), prepare=True) for s in statements]
                return [cursor.fetchall() if s.answers else () for cursor, s in zip(cursors, statements, strict=True)]

        return again(work)

    def transact(self, work: Callable[[Connection[Any]], T]) -> T:
        """`work` in one transaction; again in place where the server asks for that."""

        def once() -> T:
            with self.begin() as conn:
                return work(conn)

        return again(once)


def _commit(conn: Connection[Any]) -> None:
    # The server answers such a COMMIT with a rollback, and no error.
    if conn.info.transaction_status is TransactionStatus.INERROR:
        raise InterlockError("a statement in this transaction failed, and the block went on as if it had not: nothing of the block was stored")
    conn.execute("COMMIT")


def again(work: Callable[[], T]) -> T:
    for tried in range(TRIES):
        try:
            return work()
        except psycopg.Error as error:
            if error.sqlstate not in AGAIN or tried == TRIES - 1:
                raise
            time.sleep(random.uniform(0, 0.02 * 2**tried))
    raise AssertionError("unreachable")


def is_unwell(error: Exception) -> bool:
    """Is the database unwell, or our code, rather than a value that it cannot store? Then no row is to blame."""
    return not isinstance(error, psycopg.DataError | psycopg.IntegrityError | InterlockError | ValueError)
