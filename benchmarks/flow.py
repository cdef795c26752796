"""Measures limits and flows: claims of a kind with 10,000 concurrency keys, and a fan-in of 10,000 jobs.

Each figure is the CPU time of the database and of Python for one job, beside that of plain jobs in the same run.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from interlock import App, Run, Tx
from interlock.core.decide import decide
from interlock.core.ids import uuid7
from interlock.core.limits import Limit
from interlock.core.outcome import Returned
from interlock.store.flow_types import DeclaredLimit
from interlock.store.types import KindFacts, Lease, NewJob

from .bench import POLICY, STANDARD, Bench

KEYS = 10_000
CLAIM = 250
"""How many jobs one claim leases."""
ROUNDS = 5


@dataclasses.dataclass
class FlowResult:
    """One line of the table."""

    store: str
    what: str
    us: float
    """CPU microseconds per job."""
    ratio: float
    """Divided by those of plain jobs in the same run."""

    def as_json(self) -> dict[str, object]:
        return dataclasses.asdict(self)


# ---------------------------------------------------------------- concurrency keys
class KeyBench:
    """A kind whose jobs have one of 10,000 keys, each with at most one running job."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.store = bench, bench.store
        limits = [DeclaredLimit("key", "keyed", Limit(max_running=1))]
        self.store.registry.migrate([STANDARD], [KindFacts("noop", "standard"), KindFacts("keyed", "standard")], limits)

    def jobs(self, kind: str, keys: range) -> list[NewJob]:
        key: Callable[[int], str | None] = (lambda n: f"k{n}") if kind == "keyed" else (lambda _: None)
        return [
            NewJob(
                uuid7(), kind, "standard", self.bench.version, STANDARD.initial, '{"n":1}', 3, concurrency_key=key(n)
            )
            for n in keys
        ]

    def enqueue(self, kind: str, keys: range) -> None:
        for start in range(keys.start, keys.stop, 1000):
            self.store.queue.enqueue(self.jobs(kind, range(start, min(start + 1000, keys.stop))))

    def claim(self, kind: str) -> tuple[list[Lease], float]:
        """Claim all that may start. Returns the leases, and the CPU microseconds for each."""
        rules = [dataclasses.replace(rule, kind=kind) for rule in self.bench.claim_rules("IN_PROGRESS")]
        leases: list[Lease] = []
        cpu, python = self.bench.cpu(), time.process_time()
        while found := self.store.queue.claim("bench", rules, ["default"], CLAIM):
            leases += found
        used = self.bench.cpu() - cpu + (0.0 if self.bench.name.startswith("sqlite") else time.process_time() - python)
        return leases, used / max(len(leases), 1) * 1e6

    def finish(self, leases: list[Lease]) -> None:
        for start in range(0, len(leases), 500):
            moves = [
                decide(STANDARD, lease.job, lease, Returned("1", boundary=False), POLICY, 0.5, actor="bench")
                for lease in leases[start : start + 500]
            ]
            assert not self.store.transitions.move(moves)

    def measure(self, kind: str, keys: range) -> float:
        found: list[float] = []
        for _ in range(ROUNDS):
            self.enqueue(kind, keys)
            leases, us = self.claim(kind)
            assert len(leases) == len(keys), f"{len(leases)} of {len(keys)}"
            self.finish(leases)
            found.append(us)
        return statistics.median(found)


def measure_keys(bench: Bench) -> list[FlowResult]:
    """Measure claims of plain jobs, and of jobs with keys beside ever more keys that are at their limit."""
    keys, results = KeyBench(bench), list[FlowResult]()
    free = range(KEYS - 1000, KEYS)
    plain = keys.measure("noop", free)
    results.append(FlowResult(bench.name, "claim, no limits", plain, 1.0))
    at_limit = 0
    for wanted in (0, 1000, KEYS - 1000):
        # Of each of these keys one job runs, and two wait.
        more = range(at_limit, wanted)
        for _ in range(3):
            keys.enqueue("keyed", more)
        if more:
            keys.claim("keyed")
        at_limit = wanted
        us = keys.measure("keyed", free)
        results.append(FlowResult(bench.name, f"claim, 1,000 keys free, {wanted:,} at their limit", us, us / plain))
    return results


# ---------------------------------------------------------------- fan-in
def measure_fan_in(name: str, url: str, schema: str, jobs: int, cpu: Callable[[], float] | None) -> list[FlowResult]:
    """Measure jobs with and without a final one that waits for all of them, enqueued and run by one worker."""
    app: App[Tx] = App(url, schema=schema)

    @app.job
    async def part(run: Run, n: int) -> int:  # noqa: ARG001 - every handler holds one
        return n

    @app.job
    async def final(run: Run) -> int:  # noqa: ARG001
        return 1

    app.migrate()

    def plain() -> None:
        for start in range(0, jobs, 1000):
            app.enqueue_many([part.request(n) for n in range(start, start + 1000)])

    def fan_in() -> None:
        with app.flow("bench") as flow:
            parts = flow.batch("parts", [part.request(n) for n in range(jobs)])
            flow.add(final.request(), after=[parts])

    def used() -> float:
        return time.process_time() + (cpu() if cpu else 0.0)

    found: dict[str, list[float]] = {"plain": [], "fan-in": []}
    for _ in range(ROUNDS):
        for what, enqueue in (("plain", plain), ("fan-in", fan_in)):
            before = used()
            enqueue()
            app.run_until_idle(timeout=600)
            found[what].append((used() - before) / jobs * 1e6)
    app.close()
    base, whole = statistics.median(found["plain"]), statistics.median(found["fan-in"])
    ratio = statistics.median(b / a for a, b in zip(found["plain"], found["fan-in"], strict=True))
    return [
        FlowResult(name, f"{jobs:,} jobs, enqueued and run", base, 1.0),
        FlowResult(name, f"{jobs:,} jobs and one that waits for all", whole, ratio),
    ]


def show(results: list[FlowResult], console: Console) -> None:
    table = Table("store", "limits and flows", "CPU µs/job", "× plain")
    for each in results:
        table.add_row(each.store, each.what, f"{each.us:.1f}", f"{each.ratio:.2f}")
    console.print(table)
