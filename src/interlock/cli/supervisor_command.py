"""`interlock worker --processes N`: supervises several workers, and serves their metrics as one."""

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.sleeper import SystemSleeper
from ..telemetry import logs
from ..telemetry.events import Notice
from ..worker.supervisor import Supervisor
from .common_options import CommandError

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


def supervise(name: str, count: int, arguments: Sequence[str], metrics_host: str, metrics_port: int | None) -> int:
    """Run this many workers with these command-line arguments, and return the exit code."""
    return asyncio.run(_supervise(name, count, arguments, metrics_host, metrics_port))


async def _supervise(
    name: str, count: int, arguments: Sequence[str], metrics_host: str, metrics_port: int | None
) -> int:
    def of_one(worker: str, channel: int) -> list[str]:
        # If an option is repeated, its last value counts.
        own = ["--processes", "1", "--name", worker, "--supervisor", str(channel)]
        return ["-m", "interlock", *arguments, *own]

    fields: dict[str, object] = {"processes": count, "pid": os.getpid()}
    if metrics_port is None:
        logs.write(Notice(name, "the supervisor starts", fields))
        code = await Supervisor(name, count, of_one, SystemSleeper()).run()
    else:
        from ..telemetry.merged_metrics import MergedMetrics

        merged = MergedMetrics()
        supervisor = Supervisor(name, count, of_one, SystemSleeper(), on_end=merged.end)
        async with _served(supervisor, merged, metrics_host, metrics_port) as url:
            logs.write(Notice(name, "the supervisor starts", {**fields, "metrics": url}))
            code = await supervisor.run()
    logs.write(Notice(name, "the supervisor has ended", {"code": code}))
    return code


# ---------------------------------------------------------------- metrics
@asynccontextmanager
async def _served(supervisor: Supervisor, merged: "MergedMetrics", host: str, port: int) -> AsyncGenerator[str]:
    """Serve the metrics of all processes during the block, and yield the address."""
    from prometheus_client import CollectorRegistry

    from ..telemetry.merged_metrics import MergedCollector
    from ..telemetry.metrics import serve_registry

    loop, registry = asyncio.get_running_loop(), CollectorRegistry()

    def scrape() -> "list[Metric]":
        answer = asyncio.run_coroutine_threadsafe(_scrape(supervisor, merged), loop)
        return answer.result(2 * (COUNTS_TIMEOUT + DATABASE_TIMEOUT))

    registry.register(MergedCollector(scrape))
    served = serve_registry(registry, port, host=host)
    try:
        yield served.url
    finally:
        # A scrape may still need the loop.
        await asyncio.to_thread(served.close)


async def _scrape(supervisor: Supervisor, merged: "MergedMetrics") -> "list[Metric]":
    from ..telemetry.merged_metrics import COUNTS, DATABASE

    answered = await supervisor.ask_all(COUNTS, COUNTS_TIMEOUT, merged.update)
    # The numbers in the database are the same in every process: read them once.
    database = await supervisor.ask_one_of(answered, DATABASE, DATABASE_TIMEOUT)
    return list(merged.metrics(database, supervisor.restarts))
