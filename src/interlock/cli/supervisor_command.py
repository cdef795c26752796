"""`interlock worker --processes N`: supervises several workers, and serves their metrics and their health as one."""

import asyncio
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.types import WSGIApplication

from ..core.sleeper import SystemSleeper
from ..telemetry import logs
from ..telemetry.events import Notice
from ..worker.health import UNRESPONSIVE, Health
from ..worker.supervised_health import health_of_workers
from ..worker.supervised_worker import SupervisedWorker
from ..worker.supervisor import Supervisor
from .code_watcher import require_watcher, watch
from .common_options import CommandError
from .worker_options import LifeOptions
from .worker_pages import Addresses, Served, serve

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ..telemetry.merged_metrics import MergedMetrics

COUNTS_TIMEOUT = 2.0
"""Seconds that a process has to send its counts. A frozen process must not fail the scrape of the others."""
DATABASE_TIMEOUT = 5.0
"""Seconds that a process has to read the numbers of jobs from the database."""


def process_count(processes: str) -> int:
    """Return the number that `--processes` names."""
    if processes == "auto":
        return usable_cores()
    if not (processes.isascii() and processes.isdigit() and int(processes) >= 1):
        raise CommandError(f"--processes is {processes!r}: give a number that is 1 or more, or auto.")
    return int(processes)


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may use: a container's limit, if it has one, rounded up."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        group = next(line.removeprefix("0::/") for line in groups if line.startswith("0::/"))
        quota, period = (root / "sys/fs/cgroup" / group / "cpu.max").read_text(encoding="utf-8").split()
        return max(min(available, math.ceil(int(quota) / int(period))), 1)
    except (OSError, StopIteration, ValueError):
        return available


def supervise(name: str, count: int, arguments: Sequence[str], life: LifeOptions) -> int:
    """Run this many workers with these command-line arguments, and return the exit code."""
    if life.reload:
        require_watcher()
    return asyncio.run(_supervise(name, count, arguments, life))


async def _supervise(name: str, count: int, arguments: Sequence[str], life: LifeOptions) -> int:
    def of_one(worker: str, channel: int) -> list[str]:
        # If an option is repeated, its last value counts.
        own = ["--processes", "1", "--name", worker, "--supervisor", str(channel)]
        return ["-m", "interlock", *arguments, *own]

    merged = None if life.addresses.metrics is None else _merged_metrics()
    supervisor = Supervisor(
        name,
        count,
        of_one,
        SystemSleeper(),
        drain=life.drain,
        reloads=life.reload,
        on_end=None if merged is None else merged.end,
    )
    served = _serve(supervisor, merged, life.addresses)
    watching = asyncio.create_task(watch(supervisor)) if life.reload else None
    try:
        logs.write(Notice(name, "the supervisor starts", {"processes": count, "pid": os.getpid(), **served.urls}))
        code = await supervisor.run()
    finally:
        if watching is not None:
            watching.cancel()
        # A page that is being served may still need the loop.
        await asyncio.to_thread(served.close)
    logs.write(Notice(name, "the supervisor has ended", {"code": code}))
    return code


# ---------------------------------------------------------------- metrics and health
def _merged_metrics() -> "MergedMetrics":
    from ..telemetry.merged_metrics import MergedMetrics

    return MergedMetrics()


def _serve(supervisor: Supervisor, merged: "MergedMetrics | None", addresses: Addresses) -> Served:
    """Serve the metrics and the health of all processes. The pages are called in threads, and ask in the event loop."""
    loop = asyncio.get_running_loop()

    def health() -> Health:
        asking = asyncio.run_coroutine_threadsafe(health_of_workers(supervisor), loop)
        try:
            return asking.result(UNRESPONSIVE)
        except TimeoutError:
            silent = f"The supervisor has not responded for {UNRESPONSIVE:g} s."
            return Health([silent], [silent])

    return serve(addresses, None if merged is None else _merged_page(supervisor, merged, loop), health)


def _merged_page(supervisor: Supervisor, merged: "MergedMetrics", loop: asyncio.AbstractEventLoop) -> WSGIApplication:
    from prometheus_client import CollectorRegistry

    from ..telemetry.merged_metrics import MergedCollector
    from ..telemetry.metrics import registry_page

    def scrape() -> "list[Metric]":
        answer = asyncio.run_coroutine_threadsafe(_scrape(supervisor, merged), loop)
        return answer.result(2 * (COUNTS_TIMEOUT + DATABASE_TIMEOUT))

    registry = CollectorRegistry()
    registry.register(MergedCollector(scrape))
    return registry_page(registry)


async def _scrape(supervisor: Supervisor, merged: "MergedMetrics") -> "list[Metric]":
    from ..telemetry.merged_metrics import COUNTS, DATABASE

    def update(worker: SupervisedWorker, counts: list[Any]) -> None:
        merged.update(worker, worker.name, counts)

    answered = await supervisor.ask_all(COUNTS, COUNTS_TIMEOUT, update)
    # The numbers in the database are the same in every process: read them once.
    database = await answered[0].ask(DATABASE, DATABASE_TIMEOUT) if answered else None
    return list(merged.metrics(database, supervisor.restarts))
