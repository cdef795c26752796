"""The measures: for each, its systems, its columns, and how one sample is taken."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from . import systems as known
from .bench import Bench, Window
from .process import wait_for_handlers
from .quiet import Noise
from .ratios import percentile, rate_by_tenth
from .sizes import Sizes
from .systems import System


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    digits: int = 0
    compared: bool = False
    """Ratios of this column are printed."""
    is_ratio: bool = False
    """The value compares parts of one sample, so it is printed only if the sample was quiet."""


@dataclass
class Sample:
    values: dict[str, float]
    noise: Noise
    series: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Measure:
    name: str
    title: str
    systems: tuple[System, ...]
    columns: tuple[Column, ...]
    take: Callable[[Bench, System, Sizes], Sample]
    rounds: int | None = None
    pairs: tuple[tuple[System, System], ...] = ()
    """Systems to compare besides each of ours with each other one."""

    @property
    def needs_quiet(self) -> bool:
        return any(column.compared or column.is_ratio for column in self.columns)

    def compared(self) -> list[tuple[System, System]]:
        others = [system for system in self.systems if not system.ours]
        return [(ours, other) for ours in self.systems if ours.ours for other in others] + list(self.pairs)


def rate_and_cpu(window: Window, jobs: int) -> dict[str, float]:
    programs, database = window.worker_seconds / jobs * 1e6, window.database_seconds / jobs * 1e6
    return {"rate": jobs / window.seconds, "programs": programs, "database": database, "cpu": programs + database}


# ---------------------------------------------------------------- samples
def enqueue_one_by_one(bench: Bench, system: System, sizes: Sizes) -> Sample:
    with bench.database(system) as url, bench.programs(system, url, 0) as (client, _):
        client.do("one", jobs=50)
        with bench.window([client.pid]) as window:
            client.do("one", jobs=sizes.singles)
    return Sample(rate_and_cpu(window, sizes.singles), window.noise)


def enqueue_in_bulk(bench: Bench, system: System, sizes: Sizes) -> Sample:
    jobs = sizes.drain
    with bench.database(system) as url, bench.programs(system, url, 0) as (client, _):
        client.do("bulk", jobs=sizes.batch, batch=sizes.batch)
        with bench.window([client.pid]) as window:
            client.do("bulk", jobs=jobs, batch=sizes.batch)
    return Sample(rate_and_cpu(window, jobs), window.noise)


def drain(bench: Bench, system: System, sizes: Sizes, *, jobs: int, processes: int = 1) -> Sample:
    jobs = system.share_of(jobs)
    with bench.database(system) as url, bench.programs(system, url, processes) as (client, workers):
        client.do("bulk", jobs=jobs, batch=sizes.batch)
        bench.settle(url)
        window = bench.drain(system, url, workers, jobs)
    return Sample(rate_and_cpu(window, jobs), window.noise)


def drain_backlog(bench: Bench, system: System, sizes: Sizes) -> Sample:
    """Drain with one process, and compare the tenths of the jobs in the order in which they ran."""
    jobs = sizes.backlog
    with bench.database(system) as url, bench.programs(system, url, 1) as (client, workers):
        client.do("bulk", jobs=jobs, batch=sizes.batch)
        bench.settle(url)
        before = workers[0].ran
        window = bench.drain(system, url, workers, jobs)
        progress = [(at - window.began, ran - before) for at, ran in workers[0].progress if ran > before]
    tenths = rate_by_tenth(progress, jobs)
    return Sample(rate_and_cpu(window, jobs) | {"evenness": min(tenths) / max(tenths)}, window.noise, tenths)


def pick_up(bench: Bench, system: System, sizes: Sizes) -> Sample:
    """Enqueue single jobs at a low rate, and measure from the call to the handler."""
    return _paced(bench, system, jobs=sizes.pickups, batch=1, per_second=sizes.pickups_per_second, skip=5)


def steady(bench: Bench, system: System, sizes: Sizes) -> Sample:
    """Enqueue ten jobs at a time at a steady rate; the first second does not count."""
    rate = sizes.steady_per_second
    return _paced(bench, system, jobs=rate * sizes.steady_seconds, batch=10, per_second=rate, skip=rate)


def _paced(bench: Bench, system: System, *, jobs: int, batch: int, per_second: float, skip: int) -> Sample:
    with bench.database(system) as url, bench.programs(system, url, 1) as (client, workers):
        bench.settle(url)
        ran = workers[0].ran
        workers[0].resume()
        with bench.window([client.pid, workers[0].pid]) as window:
            seconds = client.do("paced", jobs=jobs, batch=batch, per_second=per_second)
            wait_for_handlers(workers, jobs, since=ran)
        waits = workers[0].waits[skip:]
    values = rate_and_cpu(window, jobs) | {"rate": jobs / seconds}
    return Sample(values | {"p50": percentile(waits, 0.5), "p99": percentile(waits, 0.99)}, window.noise)


def idle(bench: Bench, system: System, sizes: Sizes) -> Sample:
    with (
        bench.database(system, statements=True) as url,
        bench.programs(system, url, 1) as (_, workers),
    ):
        workers[0].resume()
        time.sleep(sizes.idle_seconds)  # until its polls are as rare as they become
        logged = bench.server.log_size()
        with bench.window([workers[0].pid]) as window:
            time.sleep(sizes.idle_seconds)
        statements = bench.server.count_statements(logged)
    per_second = {
        name: seconds / window.seconds * 1e3
        for name, seconds in (("programs", window.worker_seconds), ("database", window.database_seconds))
    }
    return Sample(per_second | {"statements": statements / window.seconds}, window.noise)


# ---------------------------------------------------------------- measures
RATE = Column("rate", "jobs/s", compared=True)
PROGRAMS = Column("programs", "worker CPU, µs per job")
DATABASE = Column("database", "database CPU, µs per job")
CPU = Column("cpu", "both, µs per job", compared=True)
CLIENT = replace(PROGRAMS, title="client CPU, µs per job")
BOTH_PROGRAMS = replace(PROGRAMS, title="client and worker CPU, µs per job")
ALL_CPU = replace(CPU, title="all CPU, µs per job")
P50, P99 = Column("p50", "p50, ms", 1, compared=True), Column("p99", "p99, ms", 1, compared=True)
EVENNESS = Column("evenness", "slowest ÷ fastest tenth", 2, is_ratio=True)
INTERLOCK, FAST = known.INTERLOCK, known.INTERLOCK_1000
EMPTY = replace(INTERLOCK, name="Interlock, empty tables")


ALL = (INTERLOCK, *known.PEERS)
BATCHING = (INTERLOCK, known.PGQUEUER, known.GRAPHILE, known.PG_BOSS)
"""Without Procrastinate, which needs minutes where these need seconds."""
ON_SQLITE = (known.SQLITE, known.PYSQLITE, known.HUEY)
ENQUEUE, DRAIN = (RATE, CLIENT, DATABASE, CPU), (RATE, PROGRAMS, DATABASE, CPU)


def measures(sizes: Sizes) -> list[Measure]:
    """Return all measures, in the order in which they run."""
    return [
        Measure("enqueue-one", "Enqueue one by one", ALL, ENQUEUE, enqueue_one_by_one),
        Measure("enqueue-bulk", f"Enqueue in bulk, {sizes.batch:,} jobs per call", ALL, ENQUEUE, enqueue_in_bulk),
        _drain(sizes, 1, "process"),
        _drain(sizes, 2, "processes"),
        _commit(sizes),
        _pickup(sizes),
        _steady(sizes),
        _backlog(sizes),
        _history(sizes),
        Measure("sqlite-enqueue", "SQLite: enqueue one by one", ON_SQLITE, (RATE, CLIENT), enqueue_one_by_one),
        _sqlite_drain(sizes),
        _idle(),
    ]


def _drain(sizes: Sizes, processes: int, word: str) -> Measure:
    take = partial(drain, jobs=sizes.drain, processes=processes)
    title, rows = f"Drain with {processes} {word}", (INTERLOCK, FAST, *known.PEERS)
    return Measure(f"drain-{processes}", title, rows, DRAIN, take, pairs=((INTERLOCK, FAST),))


def _commit(sizes: Sizes) -> Measure:
    rows = (known.COMMITTED, *known.BY_HAND)
    return Measure("commit", "Commit functions", rows, DRAIN, partial(drain, jobs=sizes.commits))


def _pickup(sizes: Sizes) -> Measure:
    columns = (P50, P99, BOTH_PROGRAMS, DATABASE, ALL_CPU)
    return Measure("pickup", "Pickup of a single job", ALL, columns, pick_up, rounds=sizes.pickup_rounds)


def _steady(sizes: Sizes) -> Measure:
    enqueued = replace(RATE, title="enqueued, jobs/s", compared=False)
    title = f"Steady load of {sizes.steady_per_second:,} jobs/s in tens"
    return Measure("steady", title, BATCHING, (P50, P99, enqueued, BOTH_PROGRAMS, DATABASE, ALL_CPU), steady)


def _backlog(sizes: Sizes) -> Measure:
    title = f"Drain a backlog of {sizes.backlog:,}"
    return Measure("backlog", title, BATCHING, (RATE, EVENNESS, CPU), drain_backlog)


def _history(sizes: Sizes) -> Measure:
    filled = replace(INTERLOCK, name=f"Interlock, {sizes.history:,} finished jobs", history=sizes.history)
    title = f"Drain with {sizes.history:,} finished jobs in the tables"
    return Measure("history", title, (EMPTY, filled), DRAIN, partial(drain, jobs=sizes.drain), pairs=((filled, EMPTY),))


def _sqlite_drain(sizes: Sizes) -> Measure:
    take = partial(drain, jobs=sizes.sqlite_drain)
    return Measure("sqlite-drain", "SQLite: drain", ON_SQLITE, (RATE, PROGRAMS), take)


def _idle() -> Measure:
    columns = (
        Column("statements", "statements/s", 1),
        Column("programs", "worker CPU, ms/s", 1),
        Column("database", "database CPU, ms/s", 1),
    )
    return Measure("idle", "An idle worker", ALL, columns, idle, rounds=1)
