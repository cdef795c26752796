"""`interlock worker --processes N` as a process of a laboratory, and what tests need to know about its workers."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.crash import supervised_app
from tests.crash.lab import ROOT, Lab, until
from tests.crash.worker_command import Command

PROGRAM = "tests.crash.supervised_app:app"
READY = "the workers are ready"
# The terminal at standard input becomes the controlling terminal of a new session, as in a shell.
_IN_TERMINAL = (
    "import fcntl, os, runpy, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "sys.argv[0] = 'interlock'; runpy.run_module('interlock', run_name='__main__')"
)


def arguments(name: str, count: int, *more: str, program: str = PROGRAM) -> list[str]:
    return ["worker", "-A", program, "--name", name, "--processes", str(count), *more]


class Supervised(Command):
    """A supervisor and its workers."""

    def __init__(self, lab: Lab, count: int, *more: str, program: str = PROGRAM, name: str = "sup") -> None:
        self._lab = lab
        environment = lab.setting.environment() | {"PGAPPNAME": lab.called(name)}
        super().__init__(name, arguments(name, count, *more, program=program), environment, lab.log_of(name))
        lab.add(self)

    def ready(self, times: int = 1) -> "Supervised":
        """Wait until all workers are ready, for the so many-th time."""
        self._lab.until(lambda: self.log.count(READY) >= times or not self.alive, "all workers are ready")
        assert self.alive, self.log
        return self

    def says(self, text: str, times: int = 1) -> None:
        self._lab.until(lambda: self.log.count(text) >= times, f"the log says {text!r}")

    @property
    def pids(self) -> dict[str, int]:
        """Return the newest process id of each worker, by its name."""
        started = re.findall(r"the worker starts .* name=(\S+) pid=(\d+) ", self.log)
        return {name: int(pid) for name, pid in started}

    def close(self) -> None:
        super().close()
        for pid in self.pids.values():
            if is_worker(pid):
                os.kill(pid, signal.SIGKILL)


class InTerminal(Supervised):
    """A supervisor in the foreground of its own terminal."""

    def __init__(self, lab: Lab, count: int, **environment: str) -> None:
        self.name, self._lab = "sup", lab
        self._log = lab.log_of(self.name)
        self._terminal, side = pty.openpty()
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _IN_TERMINAL, *arguments(self.name, count)],
                cwd=ROOT,
                env=os.environ | lab.setting.environment() | environment,
                stdin=side,
                stdout=file,
                stderr=file,
            )
        os.close(side)
        lab.add(self)

    def press_control_c(self) -> None:
        os.write(self._terminal, b"\x03")

    def close(self) -> None:
        super().close()
        with contextlib.suppress(OSError):
            os.close(self._terminal)


def is_worker(pid: int) -> bool:
    """Return whether a supervised worker with this process id is running."""
    try:
        return b"--supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def until_gone(pids: dict[str, int]) -> None:
    until(lambda: not any(is_worker(pid) for pid in pids.values()), f"{pids} have ended")


def live(lab: Lab) -> list[str]:
    """Return the names of the workers in the database, without their ids."""
    return sorted(seen.facts.name.partition("#")[0] for seen in lab.store.workers.all())


def run_gated(lab: Lab, count: int) -> list[str]:
    """Store jobs that wait for the gate, and wait until they run."""
    kind = supervised_app.build(lab.setting).kinds["gated"]
    ids = [kind.enqueue(f"gated-{number}").id for number in range(count)]
    lab.until(lambda: sum(lab.happened("prepare").values()) == count, "the jobs run")
    return ids


def open_gate(lab: Lab) -> None:
    supervised_app.gate(lab.setting).touch()


def scrape(url: str) -> dict[str, float]:
    """Return the series of the metrics endpoint."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    said = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {series: float(value) for series, _, value in said}
