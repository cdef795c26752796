"""What each sample needs: a database, warm workers, and a window that measures time, CPU and noise."""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg

from interlock import App

from .cpu import CORES, Snapshot, calibrate, snapshot
from .process import Client, Worker, install, running, wait_for_handlers
from .quiet import Noise, Used, noise_of
from .server import Server, for_poller, sqlite_url
from .systems import INTERLOCK_1000, System

POLL = 0.005
"""Seconds between two questions whether a drain has ended."""
SETTLE = 0.3
"""Seconds that a worker stays idle before it is paused, so that it is not paused inside a transaction."""


class Window:
    """The measured part of a sample."""

    def __init__(self) -> None:
        self.began = self.seconds = 0.0
        self.worker_seconds = self.database_seconds = 0.0
        self.noise = Noise(0, 0, 0, 0, 0)


class Bench:
    """The server, the installed databases, and the calibrations of one run."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server, self.directory = server, directory
        self.fastest = calibrate(directory)
        self._installed: set[str] = set()
        self._numbers = itertools.count()
        self._log = (directory / "workers.log").open("w")

    def close(self) -> None:
        self._log.close()

    # ------------------------------------------------------------ databases
    @contextmanager
    def database(self, system: System, *, statements: bool = False) -> Iterator[str]:
        """Yield the URL of a database in which this system has just been installed."""
        if system.scheme != "postgresql":
            url = sqlite_url(system.scheme, self.directory, next(self._numbers))
            if system.ours:
                install(system, url, self._log)
            yield url
            return
        template = self.template(system)
        with self.server.copy(template) as url:
            if statements:
                self.server.log_statements()
            yield url

    def template(self, system: System) -> str:
        """Return the name of a database in which this system is installed, with its history."""
        name = f"bench_{system.program}" + (f"_{system.history}" if system.history else "")
        if name not in self._installed:
            url = self.server.create(name)
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute("CREATE TABLE effects (job text NOT NULL, n bigint NOT NULL)")
            install(system, url, self._log)
            if system.history:
                self._finish_jobs(system, url)
            self._installed.add(name)
        return name

    def _finish_jobs(self, system: System, url: str) -> None:
        """Run the jobs of the history, with two fast workers, while they are enqueued."""
        fast = replace(system, worker=INTERLOCK_1000.worker)
        with self.programs(fast, url, 2) as (client, workers):
            for worker in workers:
                worker.resume()
            ran = sum(worker.ran for worker in workers)
            client.do("bulk", jobs=system.history, batch=1000)
            wait_for_handlers(workers, system.history, since=ran)
        self.server.settle(url)

    def settle(self, url: str) -> None:
        if url.startswith("postgres"):
            self.server.settle(url)

    # ------------------------------------------------------------ programs
    @contextmanager
    def programs(self, system: System, url: str, processes: int) -> Iterator[tuple[Client, list[Worker]]]:
        """Yield a client and paused workers. Each worker has run a few jobs alone, so it is connected and warm."""
        client, workers = Client(system, url, self._log), list[Worker]()
        with running(client, workers):
            for _ in range(processes):
                workers.append(Worker(system, url, self._log))
                client.do("bulk", jobs=system.warm_up, batch=system.warm_up)
                wait_for_handlers(workers[-1:], system.warm_up)
                with self.pending(system, url) as pending:
                    self._until_done(pending)
                time.sleep(SETTLE)
                workers[-1].pause()
            yield client, workers

    @contextmanager
    def pending(self, system: System, url: str) -> Iterator[Callable[[], bool]]:
        """Yield a function that tells whether jobs of this system wait or run. It asks on a connection of its own."""
        with ExitStack() as stack:
            if system.ours:
                app = App(for_poller(url) if url.startswith("postgres") else url)
                stack.callback(app.close)
                yield lambda: bool(app.jobs(phase="pending", limit=1) or app.jobs(phase="running", limit=1))
            elif system.pending is None:
                yield lambda: False
            else:
                conn = stack.enter_context(psycopg.connect(for_poller(url), autocommit=True))
                query = system.pending.encode()
                yield lambda: conn.execute(query).fetchone() == (True,)

    def drain(self, system: System, url: str, workers: Sequence[Worker], jobs: int) -> Window:
        """Resume the workers, and measure until the last of these jobs is stored as finished."""
        ran = sum(worker.ran for worker in workers)
        with self.pending(system, url) as pending:
            pending()  # connects
            with self.window([worker.pid for worker in workers]) as window:
                for worker in workers:
                    worker.resume()
                wait_for_handlers(list(workers), jobs, since=ran)
                self._until_done(pending)
        return window

    @staticmethod
    def _until_done(pending: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while pending():
            if time.monotonic() > until:
                raise TimeoutError("Every handler ran, but jobs are still pending or running a minute later.")
            time.sleep(POLL)

    # ------------------------------------------------------------ measuring
    @contextmanager
    def window(self, pids: Sequence[int]) -> Iterator[Window]:
        """Measure the block: its time, the CPU time of these processes and of the database, and the noise."""
        window, before = Window(), calibrate(self.directory)
        begin, pollers = snapshot(), self.server.poller_pids()
        window.began = begin.at
        yield window
        end, pollers = snapshot(), sorted({*pollers, *self.server.poller_pids()})
        self._fill(window, begin, end, pids, pollers)
        after = calibrate(self.directory)
        self.fastest = self.fastest.fastest(before).fastest(after)
        window.noise = noise_of(self._used(begin, end), before, after, self.fastest)

    def _fill(self, window: Window, begin: Snapshot, end: Snapshot, pids: Sequence[int], pollers: list[int]) -> None:
        def used(of: Callable[[Snapshot], float]) -> float:
            return of(end) - of(begin)

        window.seconds = end.at - begin.at
        window.worker_seconds = used(lambda each: each.of_trees(pids))
        window.database_seconds = used(lambda each: each.of_trees([self.server.pid]) - each.of_trees(pollers))

    def _used(self, begin: Snapshot, end: Snapshot) -> Used:
        def ours(each: Snapshot) -> float:
            return each.of_trees([os.getpid(), self.server.pid]) + each.of_kernel()

        capacity = (end.at - begin.at) * CORES
        return Used(capacity, end.busy - begin.busy, ours(end) - ours(begin), end.steal - begin.steal)
