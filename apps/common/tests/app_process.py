"""Commands of an application in separate processes, which a test may kill."""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROCESS_TIMEOUT = 180.0
"""Seconds for a process to start or to end."""


class AppProcess:
    """A command in its own process. Its output goes to a log file."""

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
        """The exit code, or None while the process runs."""
        raise NotImplementedError

    def wait(self) -> int:
        """Wait for the process to end, and return its exit code."""
        raise NotImplementedError

    def signal(self, what: signal.Signals) -> None:
        # The id cannot be reused while nothing has waited for the process.
        if self.code is None:
            os.kill(self.pid, what)

    def kill(self) -> None:
        """Kill the process without warning, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()


class SpawnedProcess(AppProcess):
    """A process that is started as people do: `python -m …`."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        super().__init__(log.stem, log)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=log.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def wait(self) -> int:
        return self._process.wait(PROCESS_TIMEOUT)


class ForkedProcess(AppProcess):
    """A process that is forked from one with all modules imported, which saves seconds."""

    preload: tuple[str, ...] = ()
    """Modules that are imported before the fork."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        super().__init__(log.stem, log)
        context = multiprocessing.get_context("forkserver")
        # `pytest` is the main module, which each new process imports again.
        context.set_forkserver_preload([__name__, "pytest", *self.preload])
        # Up to Python 3.11, the fork server finds only modules in its working directory.
        with contextlib.chdir(ROOT):
            multiprocessing.forkserver.ensure_running()
        self._process = context.Process(target=_run_module, args=(list(arguments), str(log), environment), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def code(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join(PROCESS_TIMEOUT)
        assert self.code is not None, f"{self.name} has not ended"
        return self.code


def _run_module(arguments: list[str], log: str, environment: dict[str, str]) -> None:
    """Do in the new process what `python -m` does."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(Path(log).parent)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__")
