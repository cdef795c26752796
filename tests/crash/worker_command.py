"""The `interlock` command as a process of a laboratory: workers as users start them."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tests.crash.lab import ROOT, Lab, Process, until

PROGRAM = "tests.crash.misbehaving_app:app"
# No process outlives its test, not even a frozen one.
_RUN = "import ctypes, runpy, sys; ctypes.CDLL(None).prctl(1, 9); sys.argv[0] = 'interlock'; runpy.run_module('interlock', run_name='__main__')"


class Command(Process):
    """`interlock worker` in its own process. It does not stop at points and reports only in its log."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _RUN, *arguments],
                cwd=ROOT,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def ready(self) -> "Command":
        until(lambda: "the worker is ready" in self.log or not self.alive, f"{self.name} is ready")
        assert self.alive, self.log
        return self

    def close(self) -> None:
        if self.alive:
            self.kill()


def start(
    lab: Lab,
    name: str,
    *,
    program: str = PROGRAM,
    queues: str = "default",
    slots: int = 100,
    url: str | None = None,
    **environment: str,
) -> Command:
    """Start a worker and return at once; `url` replaces the database URL."""
    arguments = ["worker", "-A", program, "--name", name, "--queues", queues, "--slots", str(slots)]
    setting = replace(lab.setting, url=url or lab.setting.url)
    command = Command(
        name, arguments, setting.environment() | {"PGAPPNAME": lab.called(name)} | environment, lab.log_of(name)
    )
    lab.add(command)
    return command


@dataclass(frozen=True)
class Said:
    code: int
    text: str


def say(lab: Lab, *arguments: str, **environment: str) -> Said:
    """Run a command and return its exit code and output."""
    done = subprocess.run(
        [sys.executable, "-m", "interlock", *arguments],
        cwd=ROOT,
        env=os.environ | lab.setting.environment() | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Said(done.returncode, done.stdout + done.stderr)
