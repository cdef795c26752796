"""A separate PgBouncer for a test, in front of a PostgreSQL server."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

SOON = 20.0
CONFIG = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {directory}/users.txt
pool_mode = {mode}
default_pool_size = 20
max_client_conn = 200
logfile = {directory}/pgbouncer.log
"""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _owner(path: str) -> str:
    """Return the user that may use the server's socket. PgBouncer refuses to run as root."""
    return Path(path).owner() if path.startswith("/") else "nobody"


@contextmanager
def bouncer(url: str, *, mode: str = "transaction") -> Generator[str]:
    """Run PgBouncer with the default settings of its package; return the URL of the server of `url` through it."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "There is no pgbouncer here: run make system first."
    given = conninfo_to_dict(url)
    user, host = str(given.get("user", "postgres")), str(given.get("host", "127.0.0.1"))
    with tempfile.TemporaryDirectory(prefix="interlock_bouncer_") as made:
        directory, listen = Path(made), _free_port()
        settings = CONFIG.format(host=host, port=given.get("port", 5432), listen=listen, directory=directory, mode=mode)
        (directory / "pgbouncer.ini").write_text(settings)
        (directory / "users.txt").write_text(f'"{user}" ""\n')
        owner = _owner(host)
        if os.getuid() == 0:
            shutil.chown(directory, owner)
        words = [program, "-q", *(["-u", owner] if os.getuid() == 0 else []), str(directory / "pgbouncer.ini")]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        through = f"postgresql://{user}@127.0.0.1:{listen}/{given.get('dbname', 'postgres')}"
        try:
            _wait_for(through, process, directory / "pgbouncer.log")
            yield through
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(SOON)


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + SOON
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > end:
                told = log.read_text() if log.exists() else "nothing"
                raise AssertionError(f"PgBouncer refuses connections ({error}). Its log: {told}") from error
            time.sleep(0.05)
        else:
            return
