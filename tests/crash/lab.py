"""A laboratory for crashes: tests kill, freeze and resume real workers on a real database and count their effects."""

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from interlock import App
from interlock.core.job import AuditEntry, Execution, Job
from interlock.store import OpenStore
from tests.crash.crash_app import ExternalWork, Setting, build
from tests.crash.run_worker import Orders
from tests.kit import Place

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
SOON = 20.0
"""The timeout in seconds for everything here, even on a loaded machine."""
GLANCE = 0.02


class Process:
    """A worker in its own process."""

    def __init__(self, orders: Orders, environment: dict[str, str], log: Path) -> None:
        said, says = os.pipe()
        hears, heard = os.pipe()
        self._said, self._heard, self._text = said, heard, b""
        self._log = log
        self.name = orders.name
        told = asdict(orders) | {"says": says, "hears": hears}
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.run_worker", json.dumps(told)],
                cwd=ROOT,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[says, hears],
            )
        os.close(says)
        os.close(hears)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    # ------------------------------------------------------------ points
    def at(self, point: str, *, within: float = SOON) -> dict[str, Any]:
        """Wait until the worker reports that it is at this point; skip earlier reports."""
        end = time.monotonic() + within
        while True:
            message = self._next(end, point)
            if message["at"] == point:
                return message

    def is_at(self, point: str) -> bool:
        """Return whether the worker has reported this point by now."""
        while select.select([self._said], [], [], 0)[0] or b"\n" in self._text:
            if self._next(time.monotonic(), point)["at"] == point:
                return True
        return False

    def ready(self) -> "Process":
        self.at("ready")
        return self

    def _next(self, end: float, point: str) -> dict[str, Any]:
        while b"\n" not in self._text:
            readable, _, _ = select.select([self._said], [], [], max(end - time.monotonic(), 0))
            more = os.read(self._said, 4096) if readable else b""
            if not more:
                why = f"ended with {self._process.wait(5)}" if readable else "did not get there in time"
                raise AssertionError(f"{self.name} did not reach {point}: it {why}. Its log:\n{self.log}")
            self._text += more
        line, self._text = self._text.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def go_on(self) -> None:
        """Let the worker continue from the point at which it waits."""
        os.write(self._heard, b"\n")

    # ------------------------------------------------------------ signals
    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone."""
        self._process.kill()
        self._process.wait(SOON)

    def freeze(self) -> None:
        """Send SIGSTOP and wait until every thread is stopped."""
        self._signal(signal.SIGSTOP)
        until(
            lambda: all(_state(task) in "TZX" for task in Path(f"/proc/{self.pid}/task").iterdir()),
            f"{self.name} is frozen",
        )

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, what: signal.Signals) -> None:
        # The process is not yet reaped, so its id cannot belong to another process.
        self._process.send_signal(what)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def exit_code(self, *, within: float = SOON) -> int:
        return self._process.wait(within)

    def close(self) -> None:
        if self.alive:
            self.kill()
        os.close(self._said)
        os.close(self._heard)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


class Lab:
    """One database and its workers, observed from outside. The clock is real, and leases are short."""

    def __init__(
        self, place: Place, directory: Path, *, lease: float = 1.0, commit_timeout: float = 10.0, tries: int = 3
    ) -> None:
        self.place = place
        self.setting = Setting(place.url, place.schema, lease, commit_timeout, str(directory / "ledger.jsonl"), tries)
        self.app: App = build(self.setting)
        self.outside = ExternalWork(self.setting)
        self._directory = directory
        self._processes: list[Process] = []
        self._started = 0
        self.app.migrate()
        place.raw.script(self.setting.table)

    @property
    def store(self) -> OpenStore:
        return self.app.database.store()

    # ------------------------------------------------------------ workers
    def worker(
        self,
        name: str,
        *stops: str,
        tag: str | None = None,
        queues: tuple[str, ...] = ("default",),
        slots: int = 100,
        store: str | None = None,
        hang_timeout: float | None = None,
        dies: bool = True,
        url: str | None = None,
    ) -> Process:
        """Start a worker that waits at these points, at each as often as it is named, and return at once; `url`
        replaces the database URL.
        """
        orders = Orders(name, 0, 0, stops, tag, queues, slots, store, hang_timeout, dies)
        environment = replace(self.setting, url=url or self.setting.url).environment() | {
            "PGAPPNAME": self.called(name)
        }
        process = Process(orders, environment, self.log_of(name))
        self.add(process)
        return process

    def log_of(self, name: str) -> Path:
        """Return the log file for the next process, which has this name."""
        return self._directory / f"{name}-{len(self._processes)}.log"

    def add(self, process: Process) -> None:
        """Add a process that ends with this lab."""
        self._processes.append(process)

    def kill_at(self, victims: dict[str, Process]) -> None:
        """Kill each worker as soon as it is at its point, in any order."""
        left = dict(victims)

        def arrived() -> bool:
            for point, victim in list(left.items()):
                if victim.is_at(point):
                    victim.kill()
                    del left[point]
            return not left

        self.until(arrived, "every victim is at its point")

    def bury(self, process: Process) -> None:
        """Kill a worker and remove it from the lab."""
        process.close()
        self._processes.remove(process)

    def close(self) -> None:
        """End every process of this lab, by its id."""
        for process in self._processes:
            process.close()
        self.app.close()

    def freeze(self, process: Process) -> None:
        """Freeze a worker while its other threads are outside any transaction, so that only the work at its point is
        interrupted.
        """
        process.freeze()
        while not (self._writable() if self.setting.on_sqlite else self._at_rest(process)):
            process.thaw()
            process.freeze()

    def _writable(self) -> bool:
        file = sqlite3.connect(self.setting.url.removeprefix("sqlite:///"), timeout=0.5, isolation_level=None)
        try:
            # Exclusive, because a frozen reader also keeps every writer from committing.
            file.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return False
        finally:
            file.close()
        return True

    def _at_rest(self, process: Process) -> bool:
        """Return whether no session of the worker is idle inside a transaction.

        Wait first until the server has finished the running statements.
        """
        sessions = """
          SELECT coalesce(bool_or(state = 'active' AND wait_event IS DISTINCT FROM 'ClientRead'), false), count(*) FROM pg_stat_activity
          WHERE application_name = :name AND state <> 'idle'"""

        def left() -> list[int]:
            ((busy, count),) = self.place.raw(sessions, name=self.called(process.name))
            return [] if busy else [int(count)]

        return until(left, f"no session of {process.name} is active") == [0]

    def called(self, name: str) -> str:
        """Return the worker's application name in PostgreSQL."""
        return f"{self.place.schema}-{name}"[:63]

    def until_idle(self, process: Process) -> None:
        """Wait until a new heartbeat of this worker reports that it has no job."""
        now = self.store.inspect.now()

        def idle() -> bool:
            mine = [seen for seen in self.store.workers.all() if seen.facts.name.startswith(f"{process.name}#")]
            return any(seen.heartbeat_at > now and seen.facts.busy == 0 for seen in mine)

        self.until(idle, f"{process.name} is idle")

    # ------------------------------------------------------------ jobs
    def enqueue(self, kind: str, tag: str, *, queue: str = "default", **payload: Any) -> str:
        return self.app.kinds[kind].using(queue=queue).enqueue(tag=tag, **payload).id

    def job(self, id: str) -> Job:
        return self.app.get(id)

    def executions(self, id: str) -> list[Execution]:
        return self.app.executions(id)

    def remarks(self, id: str, event: str) -> list[AuditEntry]:
        return [entry for entry in self.app.history(id) if entry.n > 0 and entry.event == event]

    def until(self, condition: Callable[[], T], what: str, *, within: float = SOON) -> T:
        """Wait until the condition is true, and return its value."""
        try:
            return until(condition, what, within=within)
        except AssertionError as error:
            logs = "\n".join(
                f"--- {process.name} ({'alive' if process.alive else process.exit_code()})\n{process.log}"
                for process in self._processes
            )
            stories = "\n".join(str(job) for job in self.app.jobs() if not job.ended)
            raise AssertionError(f"{error}\n{stories}\n{logs}") from None

    def until_ended(self, *ids: str, within: float = SOON) -> list[Job]:
        """Wait until these jobs, or all jobs if none is named, have ended."""

        def ended() -> list[Job]:
            jobs = [self.job(id) for id in ids] or self.app.jobs(limit=1000)
            return jobs if all(job.ended for job in jobs) else []

        return self.until(ended, "every job has ended", within=within)

    # ------------------------------------------------------------ effects
    def effects(self) -> Counter[str]:
        """Return how many rows each tag has in the user's own table."""
        return Counter(str(row[0]) for row in self.place.raw(f"SELECT tag FROM {self.setting.effects}"))

    def happened(self, what: str) -> Counter[str]:
        """Return how often something happened outside the database, by tag."""
        return Counter(line["tag"] for line in self.outside.lines() if line["what"] == what)

    def check(self) -> None:
        """Check that `verify`, which recomputes everything, finds no violation."""
        report = self.app.verify()
        assert report.ok, report.violations


def until(condition: Callable[[], T], what: str, *, within: float = SOON) -> T:
    end = time.monotonic() + within
    while not (answer := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"This did not happen within {within:g} s: {what}.")
        time.sleep(GLANCE)
    return answer
