"""The file, queries, clock and schema check that all parts of the SQLite store share."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ...core.clock import Clock
from ...errors import NotMigrated
from .. import caller_connection
from ..enqueue_plan import Dialect, Rows, Statement
from ..open_transactions import OpenTransaction, inside
from ..queryfile import load, schema_name
from ..schema_version import check_version
from ..tx import PlainTx, Tx
from . import migrations
from .dialect import SqliteDialect
from .file import File
from .library import Library
from .timestamps import Timestamp


class SqliteSession:
    """One SQLite file, and the tables in it whose names begin with the schema's."""

    database = "sqlite"

    def __init__(self, path: str, library: Library, schema: str, clock: Clock) -> None:
        self.schema = schema_name(schema)
        self.clock = clock
        self.driver = library.name
        self.queries = load(__package__ or "", ("interlock_", f"{schema}_"))
        self.file = File(path, library)
        self.dialect: Dialect = SqliteDialect(self.queries, self.timestamp)
        self._checked = False
        self._instance: str | None = None

    def timestamp(self) -> Timestamp:
        return Timestamp(self.clock.now())

    # ------------------------------------------------------------ the schema
    def schema_version(self) -> int | None:
        """The version of the schema in the file; None if there is none. A missing file is not created."""
        if not self.file.exists():
            return None
        return self.file.read(lambda run: migrations.version_in(run, self.queries, self.schema))

    def check(self) -> None:
        """Raise `NotMigrated` if the tables are missing, or `InterlockError` if they have another version."""
        if self._checked:
            return
        found = self.schema_version()
        if found is None:
            raise NotMigrated(
                f"{self.file.path} has no Interlock tables {self.schema}_… yet; run: interlock migrate -A module:app"
            )
        check_version(f"tables {self.schema}_…", found)
        self._checked = True

    def instance(self) -> str:
        """The database's own id, to check that a caller's connection leads to the same database."""
        if self._instance is None:
            self.check()
            self._instance = str(self.file.read(lambda run: run(Statement(self.queries["instance"], {})))[0][0])
        return self._instance

    def find_instance(self) -> Generator[Statement, Rows, str | None]:
        found = yield Statement(self.queries["exists"], {"table": f"{self.schema}_schema_version"})
        if not found[0][0]:
            return None
        rows = yield Statement(self.queries["instance"], {})
        return str(rows[0][0])

    # ------------------------------------------------------------ statements and transactions
    def statement(self, query: str, params: dict[str, Any], *, answers: bool = True) -> Statement:
        return Statement(self.queries[query], params, answers=answers)

    def read(self, query: str, params: dict[str, Any]) -> Rows:
        """Run a query, in the open transaction of the app that this code runs in if there is one."""
        self.check()
        statement = self.statement(query, params)
        joined = caller_connection.reading(self)
        return self.file.read(lambda run: run(statement)) if joined is None else joined(statement)

    def read_own(self, query: str, params: dict[str, Any]) -> Rows:
        """Run a query on a connection of our own."""
        return self.file.read(lambda run: run(self.statement(query, params)))

    def count_changed(self, query: str, params: dict[str, Any], *, first: bool = False) -> int:
        """Run a statement and return how many rows it changed."""
        self.check()
        with self.file.write(first=first) as conn:
            return conn.execute(self.queries[query], params).rowcount

    def joined(self) -> OpenTransaction | None:
        return caller_connection.joined(self)

    @contextmanager
    def transaction(self) -> Generator[Tx]:
        self.check()
        with self.file.write_with_caller_code() as conn:
            tx = PlainTx(conn, self.file.converting)
            with inside(self, tx):
                yield tx

    def close(self) -> None:
        self._checked = False
        self.file.close()
