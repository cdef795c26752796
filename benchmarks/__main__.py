"""`python -m benchmarks [--part PART] [--only STORE] [--jobs N] [--history N] [--postgres URL]`: prints tables, and
writes JSON with --json FILE.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import courier, flow, studio
from .bench import Bench, Figure
from .databases import backend_cpu, postgres, postgres_floor, sqlite, sqlite_floor
from .reconcile import ReconcilerResult, measure_pass
from .worker import WorkerResult, measure_worker

STORES = ("postgresql", "sqlite", "sqlite+pysqlite3")
PARTS = ("stores", "worker", "flow", "reconciler", "courier", "studio")


def measure(bench: Bench, floor: list[Figure], jobs: int) -> list[Figure]:
    """Measure one store. Work that commits each job separately uses fewer jobs."""
    figures = list(floor)
    few = max(200, jobs // 40)
    figures.append(bench.timed("enqueue one by one", lambda: bench.enqueue_singly(few)))
    bench.drain(1000)
    figures.append(bench.timed("enqueue in bulk of 1,000", lambda: bench.enqueue_in_bulk(jobs)))
    bench.drain(1000)
    for batch in (1, 10, 100, 250, 1000):
        bench.enqueue_in_bulk(few if batch == 1 else jobs)
        figures.append(bench.timed(f"claim + finish, batch {batch}", lambda batch=batch: bench.drain(batch)))
    bench.enqueue_in_bulk(jobs)
    figures.append(
        bench.timed("claim + finish, every status written, batch 250", lambda: bench.drain_by_every_status(250))
    )
    for figure in figures:
        base = floor[0] if "bulk" in figure.what else floor[1]
        figure.ratio = figure.cpu_us / base.cpu_us if base.cpu_us else None
    return figures


def run(name: str, directory: Path, given: argparse.Namespace) -> tuple[list[Figure], list[WorkerResult]]:
    """Measure a store, then a worker on it."""
    jobs, history, server = given.jobs, given.history, name == "postgresql"
    with postgres(directory, given.postgres) if server else sqlite(directory, name) as (bench, where):
        if history:
            bench.enqueue_in_bulk(history)
            bench.drain(1000)
        floor = postgres_floor(where, jobs, 250) if server else sqlite_floor(where, name, jobs, 250)
        figures = measure(bench, floor, jobs) if "stores" in given.part else list(floor)
        if "worker" not in given.part:
            return figures, []
        used: Callable[[], float] | None = partial(backend_cpu, where) if server else None
        return figures, measure_worker(
            name, where, "bench" if server else "interlock", jobs=jobs, many=given.many, cpu=used
        )


def show(figures: list[Figure], console: Console) -> None:
    table = Table("store", "what", "jobs", "jobs/s", "database CPU µs/job", "× floor")
    for f in figures:
        table.add_row(
            f.store,
            f.what,
            f"{f.jobs:,}",
            f"{f.per_second:,.0f}",
            f"{f.cpu_us:.1f}",
            f"{f.ratio:.1f}" if f.ratio else "–",
        )
    console.print(table)
    console.print(
        "SQLite runs inside this process: its CPU includes Python's. The floor is one bare table without rules or "
        "audit, in the same run."
    )


def show_workers(results: list[WorkerResult], console: Console) -> None:
    table = Table(
        "store",
        "one worker process",
        "jobs",
        "jobs/s",
        "Python µs/job",
        "database µs/job",
        "p50 ms",
        "p99 ms",
        "RSS MB",
    )
    for w in results:
        table.add_row(
            w.store,
            w.what,
            f"{w.jobs:,}",
            f"{w.per_second:,.0f}" if w.per_second else "–",
            f"{w.python_us:.0f}" if w.python_us else "–",
            "–" if w.database_us is None else f"{w.database_us:.0f}",
            *("–" if ms is None else f"{ms:.1f}" for ms in (w.p50_ms, w.p99_ms)),
            f"{w.rss_mb:.0f}",
        )
    console.print(table)


def show_reconcilers(results: list[ReconcilerResult], console: Console) -> None:
    table = Table(
        "store",
        "downloads",
        "cycles of 100",
        "requests / cycle",
        "statements / cycle",
        "ms / cycle",
        "ms until answered",
        "never checked",
        "checked twice",
    )
    for f in results:
        table.add_row(
            f.store,
            f"{f.active:,}",
            f"{f.cycles:,}",
            f"{f.requests:.2f}",
            f"{f.statements:.1f}",
            f"{f.ms:.1f}",
            f"{f.answered_ms:.1f}",
            f"{f.never_checked:,}",
            f"{f.checked_twice:,}",
        )
    console.print(table)


def measure_reconciler(name: str, directory: Path, given: argparse.Namespace) -> list[ReconcilerResult]:
    """Measure the librarian's reconciler on a separate database."""
    if "reconciler" not in given.part or name == "sqlite+pysqlite3":
        return []
    apart = directory / "reconciler"
    apart.mkdir(exist_ok=True)
    with postgres(apart, given.postgres) if name == "postgresql" else sqlite(apart, name) as (_, where):
        return [measure_pass(name, where, directory, given.follow)]


def measure_studio(name: str, directory: Path, given: argparse.Namespace) -> list[studio.StudioResult]:
    """Measure the studio on a separate database."""
    if "studio" not in given.part or name == "sqlite+pysqlite3":
        return []
    apart = directory / "studio"
    apart.mkdir(exist_ok=True)
    with postgres(apart, given.postgres) if name == "postgresql" else sqlite(apart, name) as (_, where):
        return [studio.measure(name, where, directory, given.images)]


def measure_flow(name: str, directory: Path, given: argparse.Namespace) -> list[flow.FlowResult]:
    """Measure limits and flows on a separate database."""
    if "flow" not in given.part or name == "sqlite+pysqlite3":
        return []
    apart, server = directory / "flow", name == "postgresql"
    apart.mkdir(exist_ok=True)
    with postgres(apart, given.postgres) if server else sqlite(apart, name) as (bench, where):
        used: Callable[[], float] | None = partial(backend_cpu, where) if server else None
        return [
            *flow.measure_keys(bench),
            *flow.measure_fan_in(name, where, "bench" if server else "interlock", 10_000, used),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument(
        "--history",
        type=int,
        default=0,
        help="finished jobs to store before measuring; the tables are not analysed",
    )
    parser.add_argument("--only", choices=STORES, action="append")
    parser.add_argument(
        "--postgres",
        metavar="URL",
        help="measure this server instead of a temporary one; drops its schemas bench and bench_floor",
    )
    parser.add_argument(
        "--many", type=int, default=200_000, help="jobs to run before reading the worker's memory; 0 skips this"
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="measure only this part; repeatable")
    parser.add_argument("--follow", type=int, default=10_000, help="downloads that the reconciler follows")
    parser.add_argument(
        "--images", type=int, default=1_000, help="images that the studio makes with an instant provider"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    given.part = given.part or PARTS
    console = Console()
    figures: list[Figure] = []
    workers: list[WorkerResult] = []
    reconcilers: list[ReconcilerResult] = []
    flows: list[flow.FlowResult] = []
    studios: list[studio.StudioResult] = []
    transfers: list[courier.Transfer] = []
    with tempfile.TemporaryDirectory() as directory:
        for name in given.only or STORES:
            console.print(f"measuring {name} …")
            if {"stores", "worker"} & set(given.part):
                of_store, of_worker = run(name, Path(directory), given)
                figures += of_store
                workers += of_worker
            flows += measure_flow(name, Path(directory), given)
            reconcilers += measure_reconciler(name, Path(directory), given)
            studios += measure_studio(name, Path(directory), given)
        if "courier" in given.part and not given.only:
            transfers += courier.measure_transfers(Path(directory))
    for results, show_results in (
        (figures, show),
        (workers, show_workers),
        (flows, flow.show),
        (reconcilers, show_reconcilers),
        (transfers, courier.show),
        (studios, studio.show),
    ):
        if results:
            show_results(results, console)
    if given.json:
        every = (*figures, *workers, *flows, *reconcilers, *transfers, *studios)
        given.json.write_text(json.dumps([each.as_json() for each in every], indent=1))


if __name__ == "__main__":
    main()
