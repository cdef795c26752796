"""Commands of an application as they really run: each in a process of its own, which a test may kill."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SLOWLY = 180.0
"""Seconds within which a process has started, or ended."""


class Program:
    """A command in a process of its own, which writes what it says into a file."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self._log = name, log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def pid(self) -> int:
        raise NotImplementedError

    @property
    def code(self) -> int | None:
        """Its exit code, if it has ended."""
        raise NotImplementedError

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        raise NotImplementedError

    def signal(self, what: signal.Signals) -> None:
        # While its end was not looked for, the id cannot be another's.
        if self.code is None:
            os.kill(self.pid, what)

    def kill(self) -> None:
        """As a power cut would, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.ended()

    def end(self) -> int:
        """Ask it to end, and answer its exit code."""
        self.signal(signal.SIGTERM)
        return self.ended()


class Started(Program):
    """As people start it: `python -m …`."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        super().__init__(log.stem, log)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments], cwd=log.parent, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def ended(self) -> int:
        return self._process.wait(SLOWLY)


class Forked(Program):
    """The same from a process that has imported everything already, which can take seconds."""

    preload: tuple[str, ...] = ()
    """The modules that are imported before."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        super().__init__(log.stem, log)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, *self.preload])
        self._process = context.Process(target=_module, args=(list(arguments), str(log), environment), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def code(self) -> int | None:
        return self._process.exitcode

    def ended(self) -> int:
        self._process.join(SLOWLY)
        assert self.code is not None, f"{self.name} has not ended"
        return self.code


def _module(arguments: list[str], log: str, environment: dict[str, str]) -> None:
    """In the new process: what `python -m` does."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(Path(log).parent)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__")
