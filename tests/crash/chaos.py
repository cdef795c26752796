"""Kill workers at random, then count lost and duplicated effects: `make chaos ARGS="--kills 50 --store sqlite"`."""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.crash.lab import GLANCE, Lab, Process
from tests.crash.postgres_server import server
from tests.kit import Place, postgres_place, sqlite_place

TRIES = 1000
"""Every kill costs each job of its worker a try.

No job can be killed this often, so a job that fails was failed by the engine.
"""
SLOTS = 10
LIFE = (0.1, 2.0)
"""The range of seconds after which a worker is killed."""
STUCK = 60.0
"""If no job ends for this many seconds, the rest counts as lost."""


@dataclass(frozen=True)
class Sort:
    """How every job of a kind ends."""

    phase: str = "succeeded"
    effects: int = 0
    """Rows in the user's table."""


SORTS = {
    "fast": Sort(),
    "plain": Sort(effects=1),
    "full": Sort(effects=1),
    "threaded": Sort(effects=1),
    "moody": Sort(effects=1),
    "resent": Sort(),
    "skipped": Sort(),
    "hopeless": Sort(phase="failed"),
}


@dataclass(frozen=True)
class Wanted:
    """The size of a run."""

    jobs: int = 10_000
    kills: int = 200
    workers: int = 4
    seed: int = 0


@dataclass
class Result:
    """The counts of a run."""

    store: str
    jobs: int = 0
    ended: int = 0
    kills: int = 0
    struck: int = 0
    """Kills of workers that had jobs."""
    effects: int = 0
    expected_effects: int = 0
    lost: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    violations: int = 0
    lease_losses: int = 0
    finished_for_others: int = 0
    refused: int = 0
    repeated: int = 0
    """External calls in doubt that were repeated under their key."""
    doubtful: int = 0
    """External calls in doubt that were not repeated."""
    recoveries: list[float] = field(default_factory=list[float])
    """Seconds from a kill until each job of the killed worker was claimed again, the shortest first."""
    unexpected_exits: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return (
            not (self.lost or self.doubled or self.violations or self.unexpected_exits)
            and self.ended == self.jobs
            and self.effects == self.expected_effects
        )


Show = Callable[[int, int], None]
"""Called with the number of kills and the number of ended jobs."""


class Chaos:
    """One run: jobs are added as kills go on, so that every kill hits running jobs."""

    def __init__(self, lab: Lab, wanted: Wanted, show: Show) -> None:
        self._lab = lab
        self._wanted = wanted
        self._show = show
        self._chance = random.Random(wanted.seed)
        self._kinds = self._chance.choices(list(SORTS), k=wanted.jobs)
        self._ids: list[str] = []
        """The enqueued jobs: the nth job is of the nth kind, and its tag is n."""
        self._kills = 0
        self._dies: dict[Process, float] = {}
        """When each worker is to be killed; a starting worker has no entry."""
        self._exits = 0
        self._killed: dict[str, list[float]] = {}
        """When workers of each name were killed, by the system clock."""

    def run(self) -> Result:
        began = time.monotonic()
        workers = [self._start(n) for n in range(self._wanted.workers)]
        while self._kills < self._wanted.kills:
            self._feed()
            workers = [self._tend(n, worker) for n, worker in enumerate(workers)]
            self._show(self._kills, self._ended())
            time.sleep(GLANCE)
        self._feed()
        self._drain()
        self._exits += sum(not worker.alive for worker in workers)
        result = self._count()
        result.seconds = time.monotonic() - began
        return result

    # ------------------------------------------------------------ jobs
    def _feed(self) -> None:
        """Enqueue the same share of the jobs as of the kills, plus one part."""
        due = min(self._wanted.jobs, self._wanted.jobs * (self._kills + 1) // (self._wanted.kills + 1))
        calls = [self._call(n) for n in range(len(self._ids), due)]
        if calls:
            self._ids += [taken.id for taken in self._lab.app.enqueue_many(calls)]

    def _call(self, n: int) -> Any:
        kind = self._kinds[n]
        payload: dict[str, Any] = {"tag": str(n)}
        if kind in ("fast", "plain", "full", "threaded"):
            payload["seconds"] = self._chance.choice([0, 0, self._chance.uniform(0, 0.2)])
        return self._lab.app.kinds[kind].request(**payload)

    def _ended(self) -> int:
        (row,) = self._lab.place.raw("SELECT count(*) FROM {jobs} WHERE phase IN ('succeeded', 'failed')")
        return int(row[0])

    def _drain(self) -> None:
        """Wait for the remaining jobs, as long as some of them end."""
        ended, since = -1, time.monotonic()
        while ended < len(self._ids) and time.monotonic() - since < STUCK:
            before, ended = ended, self._ended()
            since = since if ended == before else time.monotonic()
            self._show(self._kills, ended)
            time.sleep(5 * GLANCE)

    # ------------------------------------------------------------ workers
    def _start(self, n: int) -> Process:
        return self._lab.worker(f"worker-{n}", slots=SLOTS)

    def _tend(self, n: int, worker: Process) -> Process:
        """Keep the worker, or kill it and start another in its place."""
        if worker not in self._dies and worker.is_at("ready"):
            self._dies[worker] = time.monotonic() + self._chance.uniform(*LIFE)
        if self._kills >= self._wanted.kills or time.monotonic() < self._dies.get(worker, float("inf")):
            return worker
        self._exits += not worker.alive
        self._lab.bury(worker)
        self._killed.setdefault(f"worker-{n}", []).append(time.time())
        self._kills += 1
        return self._start(n)

    # ------------------------------------------------------------ the count
    def _count(self) -> Result:
        """Count by separate SQL, from the list of enqueued jobs; a job that no longer exists counts as lost."""
        raw, ids = self._lab.place.raw, dict(zip(self._ids, self._kinds, strict=True))
        phases = {str(row[0]): str(row[1]) for row in raw("SELECT id, phase FROM {jobs}")}
        effects = Counter(str(row[0]) for row in raw(f"SELECT job_id FROM {self._lab.setting.effects}"))
        done = Counter(str(row[0]) for row in raw("SELECT job_id FROM {executions} WHERE status = 'DONE'"))
        expected = {id: SORTS[kind] for id, kind in ids.items()}
        result = Result("sqlite" if self._lab.setting.on_sqlite else "postgres", len(ids), self._ended(), self._kills)
        result.effects, result.expected_effects = effects.total(), sum(sort.effects for sort in expected.values())
        result.lost = [
            f"{ids[id]} {id}: {phases.get(id, 'gone')}, {effects[id]} effects"
            for id, sort in expected.items()
            if phases.get(id) != sort.phase or effects[id] < sort.effects
        ]
        result.doubled = [
            f"{ids.get(id)} {id}: {count} effects"
            for id, count in effects.items()
            if id not in expected or count > expected[id].effects
        ]
        result.doubled += [f"{ids.get(id)} {id}: DONE {count} times" for id, count in done.items() if count > 1]
        result.violations = len(self._lab.app.verify().violations)
        result.unexpected_exits = self._exits
        self._count_errors(result)
        result.recoveries = self._count_recoveries()
        self._count_outside(result)
        return result

    def _count_errors(self, result: Result) -> None:
        raw = self._lab.place.raw
        ((result.lease_losses,),) = raw("SELECT coalesce(sum(lease_losses), 0) FROM {jobs}")
        ((result.finished_for_others,),) = raw("SELECT count(*) FROM {executions} WHERE status = 'DONE' AND holder > 1")
        ((result.refused,),) = raw("SELECT count(*) FROM {audit} WHERE event = 'refused'")
        ((result.struck,),) = raw("""
          SELECT count(DISTINCT c.actor) FROM {audit} c JOIN {executions} e ON e.job_id = c.job_id AND e.attempt = c.attempt
          WHERE c.event = 'claim' AND e.holder > 1""")

    def _count_recoveries(self) -> list[float]:
        rows = self._lab.place.raw(
            "SELECT job_id, event, actor, at FROM {audit} WHERE n = 0 AND event IN ('claim', 'lose') ORDER BY job_id, "
            "version"
        )
        found: list[float] = []
        for (id, _, owner, since), (_, event, by, _), (again, _, _, at) in zip(rows, rows[1:], rows[2:], strict=False):
            if id == again and event == "lose" and by != owner:
                kills = [kill for kill in self._killed.get(str(owner).partition("#")[0], []) if kill >= _stamp(since)]
                found += [_stamp(at) - min(kills)] if kills else []
        return sorted(found)

    def _count_outside(self, result: Result) -> None:
        """Check that finish runs after the commit in every job, and that no external call is left out or made under two
        keys.
        """
        lines = self._lab.outside.lines()
        kinds = {str(n): kind for n, kind in enumerate(self._kinds)}
        calls = Counter(line["tag"] for line in lines if line["what"] == "applied")
        finished = Counter(line["tag"] for line in lines if line["what"] == "finish" and line["seen"] == 1)
        keys = Counter(tag for tag, _ in {(line["tag"], line["key"]) for line in lines if line["what"] == "asked"})
        result.lost += [f"{kind} {tag}: no call" for tag, kind in kinds.items() if kind == "resent" and not calls[tag]]
        result.lost += [
            f"{kind} {tag}: no finish" for tag, kind in kinds.items() if kind == "full" and not finished[tag]
        ]
        result.doubled += [
            f"{kind} {tag}: {calls[tag]} calls" for tag, kind in kinds.items() if kind == "skipped" and calls[tag] > 1
        ]
        result.doubled += [f"{tag}: {count} keys" for tag, count in keys.items() if count > 1]
        result.doubled += [
            f"{line['tag']}: finish saw {line['seen']} effects"
            for line in lines
            if line["what"] == "finish" and line["seen"] != 1
        ]
        result.repeated = sum(count - 1 for tag, count in calls.items() if count > 1 and kinds[tag] == "resent")
        result.doubtful = sum(kind == "skipped" and not calls[tag] for tag, kind in kinds.items())


def _stamp(value: Any) -> float:
    return (value if isinstance(value, datetime) else datetime.fromisoformat(value)).timestamp()


# ---------------------------------------------------------------- command line
@contextmanager
def place_of(store: str, directory: Path) -> Generator[Place]:
    """Provide an empty database of this store; for PostgreSQL, on a separate server."""
    with ExitStack() as stack:
        place = sqlite_place(directory) if store == "sqlite" else postgres_place(stack.enter_context(server()).url)
        stack.callback(place.close)
        yield place


def run(store: str, wanted: Wanted, lease: float, console: Console) -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="interlock_chaos_") as directory,
        place_of(store, Path(directory)) as place,
        Progress(console=console) as progress,
    ):
        lab = Lab(place, Path(directory), lease=lease, tries=TRIES)
        kills = progress.add_task(f"{store}: kills", total=wanted.kills)
        ended = progress.add_task(f"{store}: jobs ended", total=wanted.jobs)

        def show(killed: int, over: int) -> None:
            progress.update(kills, completed=killed)
            progress.update(ended, completed=over)

        try:
            return Chaos(lab, wanted, show).run()
        finally:
            lab.close()


def _spread(values: list[float]) -> str:
    if not values:
        return "none"
    middle, most = values[len(values) // 2], values[len(values) * 95 // 100]
    return f"p50 {middle:.1f}, p95 {most:.1f}, max {values[-1]:.1f} (N = {len(values):,})"


def table_of(results: list[Result]) -> Table:
    table = Table("", *(result.store for result in results))

    def row(what: str, value: Callable[[Result], object]) -> None:
        table.add_row(what, *(str(value(result)) for result in results))

    row("jobs", lambda r: f"{r.ended:,} of {r.jobs:,} ended")
    row("kills", lambda r: f"{r.kills}, {r.struck} of them with running jobs")
    row("lost", lambda r: len(r.lost))
    row("duplicated", lambda r: len(r.doubled))
    row("effects in the database", lambda r: f"{r.effects:,} of {r.expected_effects:,}")
    row("violations found by verify", lambda r: r.violations)
    row("leases lost, jobs run again", lambda r: f"{r.lease_losses:,}")
    row("claimed again, seconds after the kill", lambda r: _spread(r.recoveries))
    row("finished for another worker", lambda r: r.finished_for_others)
    row("transitions refused", lambda r: r.refused)
    row("external calls repeated in doubt", lambda r: r.repeated)
    row("external calls left in doubt", lambda r: r.doubtful)
    row("workers that exited by themselves", lambda r: r.unexpected_exits)
    row("seconds", lambda r: f"{r.seconds:.0f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--lease", type=float, default=2.0, help="seconds")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10_000), help="chooses the jobs and the lifetimes of workers"
    )
    given = parser.parse_args()
    console = Console()
    console.print(f"seed {given.seed}")
    wanted = Wanted(given.jobs, given.kills, given.workers, given.seed)
    results = [
        run(store, wanted, given.lease, console)
        for store in (["sqlite", "postgres"] if given.store == "both" else [given.store])
    ]
    console.print(table_of(results))
    for result in results:
        for line in (result.lost + result.doubled)[:50]:
            console.print(f"{result.store}: {line}")
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
