"""The pools, queries and schema check that all parts of the PostgreSQL store share."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import NotMigrated
from .. import caller_connection
from ..codec import array
from ..enqueue_plan import Dialect, Rows, Statement
from ..open_transactions import OpenTransaction, inside
from ..queryfile import load, schema_name
from ..schema_version import check_version
from ..tx import PlainTx, Tx
from . import migrations
from .connection import execute, runner
from .dialect import PostgresDialect
from .pool import Pool


def as_is(value: Any) -> Any:
    """Times come from the driver as `datetime` already."""
    return value


class PostgresSession:
    """One schema of a PostgreSQL database."""

    driver = "psycopg"
    database = "postgresql"

    def __init__(self, url: str, schema: str) -> None:
        self.schema = schema_name(schema)
        self.queries = load("interlock.store.postgres", ("interlock.", f"{schema}."))
        self.pool = Pool(url)
        # Users' code may keep a connection for long, so it gets its own pool and cannot starve a worker.
        self.users = Pool(url)
        # Only our own statements run here, with plans that are fixed once for each connection.
        self.fixed = Pool(url, fixed_plans=self.fixed_plans)
        self.renewing = Pool(url, size=1, fixed_plans=self.fixed_plans)
        self.dialect: Dialect = PostgresDialect(self.queries)
        self._checked = False
        self._instance: str | None = None

    # ------------------------------------------------------------ the schema
    def schema_version(self) -> int | None:
        """The version of the schema in the database; None if there is none."""
        return self.pool.transact(lambda conn: migrations.version_in(conn, self.schema))

    def check(self) -> None:
        """Raise `NotMigrated` if the schema is missing, or `InterlockError` if it has another version."""
        if self._checked:
            return
        found = self.schema_version()
        if found is None:
            raise NotMigrated(
                f"The database has no Interlock schema {self.schema!r} yet; run: interlock migrate -A module:app"
            )
        check_version(f"tables of schema {self.schema}", found)
        self._checked = True
        self.instance()

    def instance(self) -> str:
        """The database's own id, to check that a caller's connection leads to the same database."""
        if self._instance is None:
            self.check()
            rows = self.pool.transact(lambda conn: runner(conn)(self.statement("instance", {})))
            self._instance = str(rows[0][0])
        return self._instance

    def find_instance(self) -> Generator[Statement, Rows, str | None]:
        found = yield self.statement("exists", {"table": f"{self.schema}.schema_version"})
        if not found[0][0]:
            return None
        rows = yield self.statement("instance", {})
        return str(rows[0][0])

    # ------------------------------------------------------------ statements and transactions
    def statement(self, query: str, params: dict[str, Any], *, answers: bool = True) -> Statement:
        return Statement(self.queries[query], params, answers=answers)

    def read(self, query: str, params: dict[str, Any]) -> Rows:
        """Run a query, in the open transaction of the app that this code runs in if there is one."""
        self.check()
        statement = self.statement(query, params)
        joined = caller_connection.reading(self)
        return self.pool.transact(lambda conn: runner(conn)(statement)) if joined is None else joined(statement)

    def read_with_fixed_plan(self, query: str, params: dict[str, Any]) -> Rows:
        """`read`, with a fixed query plan where the transaction is our own."""
        self.check()
        statement = self.statement(query, params)
        joined = caller_connection.reading(self)
        return self.fixed.with_fixed_plans(self.fixed_plans, statement)[0] if joined is None else joined(statement)

    def run_with_fixed_plan(self, query: str, params: dict[str, Any]) -> Rows:
        """Run one statement in a transaction of its own, with a fixed query plan."""
        self.check()
        return self.fixed.with_fixed_plans(self.fixed_plans, self.statement(query, params))[0]

    def run_locked(
        self, lock: str, ids: Sequence[str], query: str, params: dict[str, Any], *, answers: bool = True
    ) -> Rows:
        """Lock the jobs, then run a statement that writes audit notes, so that its snapshot is newer than the lock."""
        self.check()
        locked = self.statement(lock, {"id": array(ids)})
        writing = self.statement(query, params, answers=answers)
        return self.fixed.with_fixed_plans(self.fixed_plans, locked, writing)[1]

    @property
    def fixed_plans(self) -> str:
        """The statement that fixes the plans of its transaction."""
        return self.queries["fixed_plans"]

    def count_changed(self, query: str, params: dict[str, Any]) -> int:
        """Run a statement and return how many rows it changed."""
        self.check()
        return self.pool.transact(lambda conn: execute(conn, self.queries[query], params).rowcount)

    def joined(self) -> OpenTransaction | None:
        return caller_connection.joined(self)

    @contextmanager
    def transaction(self) -> Generator[Tx]:
        self.check()
        with self.users.begin() as conn:
            tx = PlainTx(conn)
            with inside(self, tx):
                yield tx

    def close(self) -> None:
        self._checked = False
        for pool in (self.pool, self.users, self.fixed, self.renewing):
            pool.close()
