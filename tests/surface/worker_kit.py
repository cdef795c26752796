"""Shared by the tests of `interlock worker`: a sample app, and worker processes whose output is read line by line."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Place
from tests.surface.cli_kit import Call

READY = "the worker is ready"

SHOP = """
import asyncio, sys, threading
import interlock.worker.worker
from interlock import App, Run, SyncRun

if "worker" in sys.argv:  # and not in the process of the tests, which imports this, too
    interlock.worker.worker.ERROR_WAIT = 0.05
app = App({url!r}, schema={schema!r})


@app.job()
async def greet(run: Run, name: str) -> None:
    print("hello", name, flush=True)


@app.job()
async def wait(run: Run) -> None:
    print("waiting", flush=True)
    await asyncio.Event().wait()


@app.job()
def block(run: SyncRun) -> None:
    interlock.worker.worker.GRACE = 0.1
    print("blocking", flush=True)
    threading.Event().wait()
"""


class Process:
    """A worker process whose output is read line by line.

    A process without output for a minute is killed, and its test fails.
    """

    def __init__(self, *arguments: str) -> None:
        self.said: list[str] = []
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen([sys.executable, "-m", "interlock", "worker", *arguments], text=True, **both)  # type: ignore[call-overload]
        self._rescue = threading.Timer(60, self._process.kill)
        self._rescue.start()

    def until(self, wanted: str) -> str:
        """Return the next line that contains this text."""
        for line in self._process.stdout:
            self.said.append(line)
            if wanted in line:
                return str(line)
        raise AssertionError(f"It ended before it said {wanted!r}:\n{''.join(self.said)}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self, number: int | None = None) -> int:
        """Return the exit code, after this signal."""
        if number is not None:
            self.signal(number)
        self.said += self._process.stdout.readlines()
        return int(self._process.wait())

    def close(self) -> None:
        self._rescue.cancel()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start workers; none outlives its test."""
    made: list[Process] = []

    def begin(*arguments: str) -> Process:
        made.append(Process(*arguments))
        return made[-1]

    yield begin
    for each in made:
        each.close()


@pytest.fixture
def waiter(place: Place, here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> str:
    """An app whose handlers print what they do, on a migrated database; INTERLOCK_APP names it."""
    (here / "waiter.py").write_text(SHOP.format(url=place.url, schema=place.schema))
    assert call("migrate", "-A", "waiter:app").code == 0
    monkeypatch.setenv("INTERLOCK_APP", "waiter:app")
    return "waiter:app"


def job(call: Call, id: str) -> Any:
    return call("show", id, "--json").json["job"]
