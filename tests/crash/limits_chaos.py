"""Kill workers at random while limits, rates and pauses hold: `python -m tests.crash.limits_chaos --jobs 20000`.

The database's own stamps say afterwards how many jobs ran at once, how often they started, and what started in a pause.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from interlock import App, Tx
from interlock.core.limits import Limit
from tests.crash.chaos import place_of
from tests.crash.limits_program import KEYS, KINDS, QUEUES, build
from tests.kit import Place

ROOT = Path(__file__).parents[2]
PAUSE = 0.4
"""How long each pause lasts, in seconds."""
STUCK = 60.0
"""If no job ends for this many seconds, the rest counts as lost."""
Start = tuple[float, float]
"""When an execution started and ended, by the database's clock."""


@dataclass
class Found:
    """What the stamps of one run say."""

    store: str
    jobs: int
    ended: int = 0
    kills: int = 0
    leases_lost: int = 0
    over: dict[str, str] = field(default_factory=dict[str, str])
    """Limits that were exceeded, with by how much."""
    most: dict[str, str] = field(default_factory=dict[str, str])
    """The most jobs that ran at once, or the worst excess of a rate, for each limit."""
    pauses: int = 0
    starts_in_pauses: int = 0
    starved: list[str] = field(default_factory=list[str])
    """Keys with less than half of their share when half of the jobs with keys had ended."""
    violations: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        whole = self.ended == self.jobs and not self.violations
        return whole and not (self.over or self.starts_in_pauses or self.starved)


class LimitsChaos:
    """One run on one database."""

    def __init__(self, place: Place, app: App[Tx], *, jobs: int, workers: int, kills: int, seed: int) -> None:
        self._place, self._app = place, app
        self._jobs, self._kills_wanted, self._count = jobs, kills, workers
        self._chance = random.Random(seed)
        self._kills = 0
        self._workers: list[subprocess.Popen[bytes]] = []
        self._pauses: list[tuple[str, str, float, float]] = []

    def run(self, show: Callable[[int, int], None]) -> Found:
        began = time.monotonic()
        self._enqueue()
        self._workers = [self._start() for _ in range(self._count)]
        ended, since = 0, time.monotonic()
        try:
            while ended < self._jobs and time.monotonic() - since < STUCK:
                self._kill(ended)
                self._pause()
                before, ended = ended, self._ended()
                since = since if ended == before else time.monotonic()
                show(self._kills, ended)
        finally:
            for process in self._workers:
                process.kill()
                process.wait()
        found = self._judge()
        found.seconds = time.monotonic() - began
        return found

    def _enqueue(self) -> None:
        kinds = list(KINDS)
        for begin in range(0, self._jobs, 1000):
            requests = []
            for n in range(begin, min(begin + 1000, self._jobs)):
                name = kinds[n % len(kinds)]
                kind = self._app.kinds[name]
                options: dict[str, Any] = {"queue": self._chance.choice(["default", "default", "tight"])}
                if "max_running_per_key" in KINDS[name] or "rate_per_key" in KINDS[name]:
                    # In turn, so that a key that falls behind is one that had to wait.
                    options["concurrency_key"] = f"k{n // len(kinds) % KEYS}"
                requests.append(kind.using(**options).request(n))
            self._app.enqueue_many(requests)

    # ------------------------------------------------------------ workers and pauses
    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.crash.limits_program", self._place.url, self._place.schema]
        log = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=ROOT, stdin=log, stdout=log, stderr=log)

    def _kill(self, ended: int) -> None:
        """Kill the workers in turn, spread over the run, and replace them."""
        while self._kills < min(self._kills_wanted, ended * (self._kills_wanted + 1) // self._jobs):
            n = self._kills % self._count
            self._workers[n].kill()
            self._workers[n].wait()
            self._workers[n] = self._start()
            self._kills += 1

    def _pause(self) -> None:
        """Pause a queue or a kind for a moment, and note between which times nothing may start."""
        scope, name = self._chance.choice(
            [("queue", "tight"), ("queue", "default"), ("kind", "keyed"), ("kind", "plain")]
        )
        controls = self._app.queue(name) if scope == "queue" else self._app.kind(name)
        controls.pause(by="chaos")
        since = self._now()
        time.sleep(PAUSE)
        until = self._now()
        controls.resume(by="chaos")
        self._pauses.append((scope, name, since, until))

    def _now(self) -> float:
        return self._app.database.store().inspect.now().timestamp()

    def _ended(self) -> int:
        (row,) = self._place.raw("SELECT count(*) FROM {jobs} WHERE phase = 'succeeded'")
        return int(row[0])

    # ------------------------------------------------------------ what the stamps say
    def _judge(self) -> Found:
        rows = self._place.raw(
            "SELECT j.queue, j.kind, j.concurrency_key, e.leased_at, e.finished_at FROM {executions} e "
            "JOIN {jobs} j ON j.id = e.job_id ORDER BY e.leased_at"
        )
        found = Found("sqlite" if "sqlite" in self._place.url else "postgres", self._jobs, self._ended(), self._kills)
        ((found.leases_lost,),) = self._place.raw("SELECT coalesce(sum(lease_losses), 0) FROM {jobs}")
        scopes: dict[tuple[str, str], tuple[Limit, list[Start]]] = {}
        for queue, kind, key, leased, finished in rows:
            span = (_stamp(leased), _stamp(finished))
            of_kind = Limit(KINDS[kind].get("max_running"), KINDS[kind].get("rate"), KINDS[kind].get("burst"))  # type: ignore[arg-type]
            limits = [("queue", queue, QUEUES.get(queue)), ("kind", kind, of_kind)]
            if key is not None:
                given = (KINDS[kind].get(f"{name}_per_key") for name in ("max_running", "rate", "burst"))
                limits.append(("key", f"{kind} {key}", Limit(*given)))  # type: ignore[arg-type]
            for scope, name, limit in limits:
                if limit is not None:
                    scopes.setdefault((scope, name), (limit, []))[1].append(span)
        for (scope, name), (limit, spans) in scopes.items():
            self._judge_limit(found, f"{scope} {name}", limit, spans)
        found.pauses = len(self._pauses)
        found.starts_in_pauses = sum(
            since < _stamp(leased) < until and name in ((queue,) if scope == "queue" else (kind,))
            for queue, kind, _, leased, _ in rows
            for scope, name, since, until in self._pauses
        )
        found.starved = _starved(rows)
        found.violations = len(self._app.verify().violations)
        return found

    @staticmethod
    def _judge_limit(found: Found, name: str, limit: Limit, spans: list[Start]) -> None:
        if limit.max_running is not None:
            most = most_at_once(spans)
            _keep(
                found.most,
                name.partition(" k")[0] if name.startswith("key") else name,
                f"{most} of {limit.max_running}",
            )
            if most > limit.max_running:
                found.over[name] = f"{most} at once, {limit.max_running} allowed"
        if limit.bucket is not None:
            rate, burst = limit.bucket
            excess = worst_excess([start for start, _ in spans], rate.count / rate.seconds, burst)
            _keep(found.most, f"rate {name.partition(' k')[0]}", f"{excess:+.2f} of {burst:g}")
            if excess > burst:
                found.over[name] = f"{excess:.2f} jobs too many"


def _keep(most: dict[str, str], name: str, shown: str) -> None:
    if name not in most or float(shown.split(" ", maxsplit=1)[0]) > float(most[name].split(" ")[0]):
        most[name] = shown


def most_at_once(spans: Iterable[Start]) -> int:
    """Return how many executions were live at the same time. One that ends at an instant frees its place for another."""
    changes = sorted(change for start, end in spans for change in ((start, 1), (end, -1)))
    most = running = 0
    for _, change in sorted(changes, key=lambda each: (each[0], each[1])):
        running += change
        most = max(most, running)
    return most


def worst_excess(starts: list[float], per_second: float, burst: float) -> float:
    """Return by how many starts the worst window of any length exceeded the burst and the rate."""
    tokens, at, worst = burst, starts[0], -burst
    for start in sorted(starts):
        tokens = min(burst, tokens + (start - at) * per_second) - 1
        at, worst = start, max(worst, -tokens)
    return worst


def _starved(rows: Iterable[Any]) -> list[str]:
    """Return the keys that had less than half of their share when half of the jobs with keys of their kind had ended."""
    ended: dict[str, list[tuple[float, str]]] = {}
    for _, kind, key, _, finished in rows:
        if key is not None and kind == "keyed":
            ended.setdefault(kind, []).append((_stamp(finished), str(key)))
    starved: list[str] = []
    for kind, ends in ended.items():
        ends.sort()
        total: dict[str, int] = {}
        early: dict[str, int] = {}
        for place, (_, key) in enumerate(ends):
            total[key] = total.get(key, 0) + 1
            early[key] = early.get(key, 0) + (place < len(ends) / 2)
        starved += [f"{kind} {key}: {early[key]} of {total[key]}" for key in total if early[key] < total[key] / 4]
    return starved


def _stamp(value: Any) -> float:
    return (value if isinstance(value, datetime) else datetime.fromisoformat(value)).timestamp()


# ---------------------------------------------------------------- command line
def run_on(place: Place, show: Callable[[int, int], None], *, jobs: int, workers: int, kills: int, seed: int) -> Found:
    app = build(place.url, place.schema)
    app.migrate()
    try:
        return LimitsChaos(place, app, jobs=jobs, workers=workers, kills=kills, seed=seed).run(show)
    finally:
        app.close()


def table_of(results: list[Found]) -> Table:
    table = Table("", *(result.store for result in results))

    def row(what: str, value: Callable[[Found], object]) -> None:
        table.add_row(what, *(str(value(result)) for result in results))

    row("jobs", lambda r: f"{r.ended:,} of {r.jobs:,} ended")
    row("kills", lambda r: r.kills)
    row("leases lost, jobs run again", lambda r: f"{r.leases_lost:,}")
    row("limits exceeded", lambda r: len(r.over))
    for name in sorted({name for result in results for name in result.most}):
        row(name, lambda r, name=name: r.most.get(name, ""))
    row("pauses", lambda r: r.pauses)
    row("starts in pauses", lambda r: r.starts_in_pauses)
    row("keys starved", lambda r: len(r.starved))
    row("violations found by verify", lambda r: r.violations)
    row("seconds", lambda r: f"{r.seconds:.0f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.limits_chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    given = parser.parse_args()
    console = Console()
    console.print(f"seed {given.seed}")
    results: list[Found] = []
    for store in ["sqlite", "postgres"] if given.store == "both" else [given.store]:
        with (
            tempfile.TemporaryDirectory(prefix="interlock_limits_") as directory,
            place_of(store, Path(directory)) as place,
            Progress(console=console) as progress,
        ):
            kills = progress.add_task(f"{store}: kills", total=given.kills)
            ended = progress.add_task(f"{store}: jobs ended", total=given.jobs)

            def show(killed: int, over: int, kills: Any = kills, ended: Any = ended, bar: Progress = progress) -> None:
                bar.update(kills, completed=killed)
                bar.update(ended, completed=over)

            wanted = {"jobs": given.jobs, "workers": given.workers, "kills": given.kills, "seed": given.seed}
            results.append(run_on(place, show, **wanted))
    console.print(table_of(results))
    for result in results:
        for line in [*(f"{name}: {by}" for name, by in result.over.items()), *result.starved][:50]:
            console.print(f"{result.store}: {line}")
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
