"""Runs the commands of an application's README, as a reader would."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from tests.surface.test_docs import Block, missing

ROOT = Path(__file__).parents[2]
TIME_LIMIT = 60.0
OURS = ("INTERLOCK_", "LIBRARIAN_", "COURIER_", "STUDIO_")
_LONG = re.compile(r"^python -m apps\.(librarian (run|serve)|courier (bot|worker)|studio (run|serve|worker))\b")


class Terminal:
    """The terminal of a reader: one directory, one set of variables, and a second window for long-running commands."""

    def __init__(self, directory: Path, instead: dict[str, str], variables: dict[str, str], programs: str) -> None:
        self._directory, self._instead = directory, instead
        clean = {key: value for key, value in os.environ.items() if not key.startswith(OURS) and key != "DATABASE_URL"}
        path = f"{programs}{os.pathsep}{clean.get('PATH', '')}"
        self._environment = (
            clean | {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TERM": "dumb"} | variables
        )
        self._running: list[subprocess.Popen[str]] = []

    def read(self, block: Block, after: Block | None) -> None:
        """Run one block of the page; the next block shows what a Python program prints."""
        if block.language == "console":
            for typed in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, expected = typed.partition("\n")
                self.type(command, expected)
        elif block.language == "python":
            self.write("_block.py", block.text)
            printed = self._run("python _block.py")
            assert after is not None
            assert missing(after.text, printed) is None, printed

    def write(self, name: str, text: str) -> None:
        """Write a file, as the reader does."""
        (self._directory / name).write_text(self._put(text), encoding="utf-8")

    def type(self, command: str, expected: str) -> None:
        """Run one command of the page, and check that it prints what the page shows."""
        printed = (
            self._start(command, expected)
            if _LONG.match(command)
            else self._run(f"{self._put(command)}\nexport -p > _variables")
        )
        lacks = missing(self._put(expected), printed)
        assert lacks is None, f"{command!r} did not print {lacks!r}, but:\n{printed}"

    def close(self) -> None:
        """Press Ctrl-C in the second window."""
        for process in self._running:
            process.send_signal(signal.SIGINT)
        for process in self._running:
            try:
                assert process.wait(TIME_LIMIT) == 0
            finally:
                process.kill()

    def _put(self, text: str) -> str:
        for shown, real in self._instead.items():
            text = text.replace(shown, real)
        return text

    def _run(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-c", f"touch _variables; source _variables; set -u -o pipefail\n{script}"],
            cwd=self._directory,
            env=self._environment,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, f"{script!r} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def _start(self, command: str, expected: str) -> str:
        log = self._directory / f"_window_{len(self._running)}"
        with log.open("w", encoding="utf-8") as out:
            script = f"source _variables; exec {self._put(command)}"
            self._running.append(
                subprocess.Popen(
                    ["bash", "-c", script],
                    cwd=self._directory,
                    env=self._environment,
                    text=True,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
        end = time.monotonic() + TIME_LIMIT
        while (
            missing(self._put(expected), log.read_text(encoding="utf-8"))
            and self._running[-1].poll() is None
            and time.monotonic() < end
        ):
            time.sleep(0.05)
        return log.read_text(encoding="utf-8")


@contextmanager
def a_database(server: str, name: str) -> Iterator[str]:
    """Create a PostgreSQL database for one page."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name}")
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
