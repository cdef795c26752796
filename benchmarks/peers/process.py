"""Starts the client and the workers of a system, and reads what they report."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .systems import ROOT, System

LIMIT = 600.0
"""Seconds after which a program that does not answer counts as hung."""


class ProgramFailedError(Exception):
    """A program of a system ended or hung."""


class Client:
    """The enqueuing process of a system."""

    def __init__(self, system: System, url: str, log: IO[str]) -> None:
        self._log = log
        self._process = subprocess.Popen(
            system.command("client"),
            cwd=ROOT,
            env=system.variables(url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self.name, self.pid = system.name, self._process.pid
        self._read()

    def do(self, what: str, **arguments: float) -> float:
        """Carry out one command and return the seconds that it took."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what} | arguments) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        return float(self._read()["seconds"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> ProgramFailedError:
        return ProgramFailedError(f"The client of {self.name} ended: {last_line(self._log)}")

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # a client that has ended leaves the last command unread
            self._process.stdin.close()
        _end(self._process)


class Worker:
    """A worker process of a system. A thread collects its reports."""

    def __init__(self, system: System, url: str, log: IO[str]) -> None:
        self._log = log
        self._process = subprocess.Popen(
            system.command("worker"),
            cwd=ROOT,
            env=system.variables(url),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self.name, self.pid = system.name, self._process.pid
        self.ran = 0
        self.progress: list[tuple[float, int]] = []
        """When it reported (monotonic seconds), and how many handlers had run."""
        self.waits: list[float] = []
        """Milliseconds from the call to the handler."""
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"ran"'):
                report = json.loads(line)
                self.progress.append((report["at"] / 1e6, report["ran"]))
                self.waits += [wait / 1e3 for wait in report["waits"]]
                self.ran = report["ran"]

    def check(self) -> None:
        if self._process.poll() is not None:
            raise ProgramFailedError(
                f"The worker of {self.name} exited with {self._process.returncode}: {last_line(self._log)}"
            )

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self._process.poll() is None:
            self.resume()
            self._process.terminate()
        _end(self._process)


def _end(process: subprocess.Popen[str], seconds: float = 10.0) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()


def last_line(log: IO[str]) -> str:
    """Return the last line that a program has written to standard error."""
    lines = Path(log.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote nothing"


def install(system: System, url: str, log: IO[str]) -> None:
    """Create the tables of a system."""
    done = subprocess.run(
        system.command("install"), cwd=ROOT, env=system.variables(url), stderr=log, timeout=LIMIT, check=False
    )
    if done.returncode:
        raise ProgramFailedError(f"{system.name} cannot be installed: {last_line(log)}")


def wait_for_handlers(workers: list[Worker], count: int, since: int = 0) -> None:
    """Wait until the workers have run this many handlers more than `since`."""
    until = time.monotonic() + LIMIT + count / 500
    while sum(worker.ran for worker in workers) - since < count:
        for worker in workers:
            worker.check()
        if time.monotonic() > until:
            raise ProgramFailedError(f"{workers[0].name} ran {sum(w.ran for w in workers) - since} of {count} jobs.")
        time.sleep(0.005)


@contextmanager
def running(client: Client, workers: list[Worker]) -> Iterator[None]:
    """Stop everything at the end of the block, also workers that it starts, and also if one cannot be stopped."""
    with ExitStack() as stack:
        try:
            yield
        finally:
            for worker in reversed(workers):
                stack.callback(worker.stop)
            stack.callback(client.close)
