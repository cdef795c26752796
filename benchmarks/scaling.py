"""A model of the jobs per second that one PostgreSQL server carries, from the costs that `make bench-peers` measures.

`python -m benchmarks.scaling [FILE]` compares it with a saved run. With `--write`, it replaces the tables of
docs/explanation/scaling.md, which states the assumptions.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from .peers.report import replace_between_markers, table
from .peers.systems import COMMITTED, INTERLOCK, INTERLOCK_1000, ROOT

PAGE = ROOT / "docs" / "explanation" / "scaling.md"
RUN = ROOT / "docs" / "explanation" / "benchmarks" / "run.json"
BEGIN, END = "<!-- scaling: begin -->", "<!-- scaling: end -->"

STAGES = 3
"""A worker claims one batch, runs another and stores a third at the same time, at most."""
GROUPS = 1
"""Groups of commits of one kind in progress. A worker runs the next handlers meanwhile, which takes little time."""
COMMIT_BATCH = 25
BULK = 1000
WAL_BYTES = 2_650
"""WAL per job, from the enqueue to the stored end: 570 + 2,080 bytes over 20,000 jobs."""
MEGABYTE = 1e6
CEILINGS = (
    "the rates at which every core of the server is busy, for jobs that are enqueued in bulk. The WAL is that of the "
    "database alone."
)


# ---------------------------------------------------------------- the model
@dataclass(frozen=True)
class Cost:
    """What one job costs: microseconds of CPU, and its share of a synced transaction."""

    programs: float
    """CPU of the worker, or of the client that enqueues."""
    database: float
    transactions: float

    @property
    def cpu(self) -> float:
        return self.programs + self.database

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.programs + other.programs, self.database + other.database, self.transactions + other.transactions
        )


def throughput(cost: Cost, wait: float, *, cores: int, processes: int = 1, at_once: int = 1) -> float:
    """Return the jobs per second of these processes.

    `at_once` batches of each process are in progress. A batch needs CPU and waits for its transactions; `wait` is the
    time of one, in microseconds, in which no CPU works for it. The cores are one station with a queue, and so is the
    Python of each process, which runs one thread at a time (mean value analysis, with Seidmann's approximation for
    several cores).
    """
    delay = cost.cpu * (cores - 1) / cores + cost.transactions * wait
    at_cores = in_python = rate = 0.0
    for batches in range(1, processes * at_once + 1):
        # The other batches of the same process, as a share of all others.
        own = max(0.0, batches / processes - 1) / max(1, batches - 1)
        for_core = cost.cpu / cores * (1 + at_cores)
        for_python = cost.programs * in_python * own
        rate = batches / (for_core + for_python + delay)
        at_cores, in_python = rate * for_core, rate * (for_python + cost.programs)
    return rate * 1e6


def wait_per_transaction(cost: Cost, rate: float) -> float:
    """Return the microseconds of a transaction in which no CPU works for it, from a client that does nothing else."""
    return max(0.0, (1e6 / rate - cost.cpu) / cost.transactions)


def batches_at_once(cost: Cost, wait: float, rate: float, *, cores: int) -> int:
    """Return how many batches one worker must have had in progress to reach this rate: the number that fits best."""
    return min(
        range(1, STAGES + 1),
        key=lambda at_once: abs(throughput(cost, wait, cores=cores, at_once=at_once) - rate),
    )


def ceiling(cost: Cost, *, cores: int, workers_elsewhere: bool) -> float:
    """Return the jobs per second at which every core of the server is busy."""
    return cores * 1e6 / (cost.database if workers_elsewhere else cost.cpu)


# ---------------------------------------------------------------- measured points
@dataclass(frozen=True)
class Point:
    """A measure of one system, and what the model must know besides its CPU per job."""

    measure: str
    system: str
    transactions: float
    processes: int = 1
    at_once: int | None = 1
    """None: as many as `drain-1` has shown."""


ENQUEUE = Point("enqueue-one", INTERLOCK.name, 1)
ENQUEUE_BULK = Point("enqueue-bulk", INTERLOCK.name, 1 / BULK)
DRAIN = Point("drain-1", INTERLOCK.name, 2 / 100, at_once=None)
COMMIT = Point("commit", COMMITTED.name, 1 / 100 + 1 / COMMIT_BATCH, at_once=GROUPS)
POINTS = (
    ENQUEUE,
    ENQUEUE_BULK,
    DRAIN,
    Point("drain-1", INTERLOCK_1000.name, 2 / 1000, at_once=None),
    Point("drain-2", INTERLOCK.name, 2 / 100, processes=2, at_once=None),
    Point("drain-2", INTERLOCK_1000.name, 2 / 1000, processes=2, at_once=None),
    COMMIT,
)
CALIBRATION = {ENQUEUE: "sets the wait", DRAIN: "sets the overlap"}


@dataclass(frozen=True)
class Comparison:
    """A measured rate beside the rate that the model predicts."""

    point: Point
    cost: Cost
    measured: float
    predicted: float
    quiet: bool

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Fit:
    """The model with the two numbers that a run sets."""

    wait: float
    at_once: int
    cores: int
    comparisons: Sequence[Comparison]

    def cost(self, point: Point) -> Cost | None:
        return next((each.cost for each in self.comparisons if each.point == point), None)


def measured(run: Mapping[str, Any], point: Point) -> tuple[Cost, float, bool] | None:
    """Return the median costs and rate of the quiet rounds; of all rounds if none was quiet; None without a record."""
    found = [
        each
        for each in run["records"]
        if (each["measure"], each["system"]) == (point.measure, point.system) and "values" in each
    ]
    quiet = [each for each in found if not each["reasons"]]
    if not found:
        return None
    programs, database, rate = (
        median(each["values"][key] for each in quiet or found) for key in ("programs", "database", "rate")
    )
    return Cost(programs, database, point.transactions), rate, bool(quiet)


def fit(run: Mapping[str, Any]) -> Fit | None:
    """Set the wait from `enqueue-one` and the overlap from `drain-1`, and predict the rest; None without these two."""
    cores, enqueue, drain = run["facts"]["cores"], measured(run, ENQUEUE), measured(run, DRAIN)
    if enqueue is None or drain is None:
        return None
    wait = wait_per_transaction(enqueue[0], enqueue[1])
    at_once = batches_at_once(drain[0], wait, drain[1], cores=cores)
    comparisons = []
    for point in POINTS:
        if found := measured(run, point):
            cost, rate, quiet = found
            predicted = throughput(cost, wait, cores=cores, processes=point.processes, at_once=point.at_once or at_once)
            comparisons.append(Comparison(point, cost, rate, predicted, quiet))
    return Fit(wait, at_once, cores, comparisons)


# ---------------------------------------------------------------- tables
def comparison_table(fitted: Fit) -> str:
    rows = [
        [
            f"`{each.point.measure}`, {each.point.system}",
            f"{each.cost.programs:,.0f} + {each.cost.database:,.0f}",
            f"{'' if each.quiet else '~'}{each.measured:,.0f}",
            f"{each.predicted:,.0f}",
            f"{round(each.error * 100) + 0:+d} %" if each.quiet else "not quiet",
            CALIBRATION.get(each.point, ""),
        ]
        for each in fitted.comparisons
    ]
    return table(["point", "program + database, µs per job", "measured jobs/s", "model", "error", ""], rows)


def ceiling_table(fitted: Fit) -> str | None:
    """Return what servers of several sizes carry, in two significant digits; None if the run lacks a measure."""
    bulk, drain, commit = (fitted.cost(point) for point in (ENQUEUE_BULK, DRAIN, COMMIT))
    if not (bulk and drain and commit):
        return None
    rows = []
    for name, run in (("without a commit function", drain), ("with a commit function", commit)):
        for cores in (2, 8, 32):
            near, far = (ceiling(bulk + run, cores=cores, workers_elsewhere=each) for each in (False, True))
            figures = (near, far, ceil(far * run.programs / 1e6), far * WAL_BYTES / MEGABYTE)
            rows.append([name, str(cores), *(about(figure) for figure in figures)])
    titles = ["jobs", "cores", "all on one machine, jobs/s", "database alone, jobs/s", "its worker processes"]
    return table([*titles, "its WAL, MB/s"], rows)


def about(value: float) -> str:
    """Return the value with two significant digits."""
    return f"{float(f'{value:.1e}'):,.0f}"


def report(run: Mapping[str, Any]) -> str:
    """Return the text between the markers of the page."""
    facts, fitted = run["facts"], fit(run)
    if fitted is None:
        return "The run lacks `enqueue-one` or `drain-1`, so the model has no input."
    fitted_text = (
        f"Fitted: a transaction waits {fitted.wait:,.0f} µs, and a busy worker has {fitted.at_once} "
        f"{'batch' if fitted.at_once == 1 else 'batches'} in progress."
    )
    intro = (
        f"From the run of {facts['date']} at commit `{facts['commit']}` on {facts['cores']} cores"
        f"{' (`--quick`)' if facts['quick'] else ''}. ~ marks a rate that was measured on a noisy machine; it is not "
        "compared."
    )
    parts = [intro, comparison_table(fitted), fitted_text]
    if ceilings := ceiling_table(fitted):
        parts += [f"**Calculated, not measured:** {CEILINGS}", ceilings]
    return "\n\n".join(parts)


def write(run: Mapping[str, Any], page: Path = PAGE) -> None:
    """Replace the tables of the page."""
    page.write_text(replace_between_markers(page.read_text(), report(run), BEGIN, END))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=RUN, help="a saved run; by default the published one")
    parser.add_argument("--write", action="store_true", help="replace the tables of the page")
    given = parser.parse_args()
    if not given.file.exists():
        parser.exit(1, f"There is no saved run {given.file}: name one, or run make bench-peers ARGS=--publish first.\n")
    run = json.loads(given.file.read_text())
    print(report(run))
    if given.write:
        write(run)


if __name__ == "__main__":
    main()
