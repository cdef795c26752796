"""One PostgreSQL server for a whole run, with a fresh copy of an installed database for each sample."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql

POLLER = "bench_poller"
"""The application name of the connections that ask whether a drain has ended. Their CPU time is not counted."""
STATEMENT = re.compile(r"^bench_sample .*LOG:  (?:statement|execute [^:]*): ", re.MULTILINE)


class Server:
    """A temporary server with the default settings of PostgreSQL: synchronous commits and fsync are on."""

    def __init__(self, directory: Path) -> None:
        from tests.postgres_start import start_server

        self._server = start_server(directory, cleanup_mode="stop")
        self.pid: int = self._server.get_pid() or sys.exit("The PostgreSQL server did not start.")
        self._log: Path = self._server.log
        self._admin = psycopg.connect(self._server.get_uri(), autocommit=True)
        self.version = self.setting("server_version")
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            if self.setting(name) != "on":
                sys.exit(f"{name} is {self.setting(name)} on the server: it must be on.")
        self._admin.execute("ALTER SYSTEM SET log_line_prefix = '%d '")
        self._admin.execute("SELECT pg_reload_conf()")

    def close(self) -> None:
        self._admin.close()
        self._server.cleanup()

    def setting(self, name: LiteralString) -> str:
        row = self._admin.execute(sql.SQL("SHOW {}").format(sql.Identifier(name))).fetchone()
        assert row is not None
        return str(row[0])

    def url(self, database: str) -> str:
        return str(self._server.get_uri(database=database))

    def create(self, database: str) -> str:
        """Create an empty database and return its URL."""
        self._admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        return self.url(database)

    @contextmanager
    def copy(self, template: str) -> Iterator[str]:
        """Yield the URL of a database `bench_sample` that is a copy of `template`; drop it afterwards."""
        self._admin.execute(
            sql.SQL("CREATE DATABASE bench_sample TEMPLATE {} STRATEGY FILE_COPY").format(sql.Identifier(template))
        )
        try:
            yield self.url("bench_sample")
        finally:
            self._admin.execute("DROP DATABASE bench_sample WITH (FORCE)")

    def settle(self, url: str) -> None:
        """Vacuum, analyse and write dirty pages now, so that neither autovacuum nor a checkpoint has to soon."""
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("VACUUM (ANALYZE)")
            conn.execute("CHECKPOINT")

    def poller_pids(self) -> list[int]:
        rows = self._admin.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", (POLLER,)).fetchall()
        return [*(pid for (pid,) in rows), self._admin.info.backend_pid]

    def log_statements(self) -> None:
        """Log each statement of new connections to the sample database, BEGIN and COMMIT included."""
        self._admin.execute("ALTER DATABASE bench_sample SET log_statement = 'all'")

    def log_size(self) -> int:
        return self._log.stat().st_size

    def count_statements(self, since: int) -> int:
        """Count the statements that the sample database has logged since the log had this size."""
        with self._log.open("rb") as file:
            file.seek(since)
            return len(STATEMENT.findall(file.read().decode(errors="replace")))


def for_poller(url: str) -> str:
    """Return the URL for a connection whose CPU time is not counted."""
    return f"{url}{'&' if '?' in url else '?'}application_name={POLLER}"


def sqlite_url(scheme: str, directory: Path, number: int) -> str:
    return f"{scheme}:///{directory / f'sample-{os.getpid()}-{number}.db'}"
