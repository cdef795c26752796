"""Measures one worker process: drains, pickup of a single job, and memory after many jobs.

`python -m benchmarks.worker URL SCHEMA WHAT JOBS SLOTS` is the measured process. It prints its results as JSON.
"""

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from interlock import App, Job, Run, Tx
from interlock.worker.assembly import run_worker, start_worker

PICKUPS = 200
BATCH = 1000


@dataclass
class WorkerResult:
    """One line of the table. SQLite runs inside the worker, so its CPU time is part of `python_us`."""

    store: str
    what: str
    jobs: int
    per_second: float
    python_us: float
    database_us: float | None
    rss_mb: float
    p50_ms: float | None = None
    p99_ms: float | None = None

    def as_json(self) -> dict[str, object]:
        return asdict(self)


# ---------------------------------------------------------------- the measured process
class Program:
    """An app with jobs that do nothing, with and without a commit function."""

    def __init__(self, url: str, schema: str) -> None:
        self.app: App[Tx] = App(url, schema=schema)
        self.begun: asyncio.Future[float] | None = None

        @self.app.job()
        async def noop(run: Run, n: int) -> int:  # noqa: ARG001 - every handler holds one
            if self.begun is not None and not self.begun.done():
                self.begun.set_result(time.perf_counter())
            return n

        @self.app.job()
        async def committed(run: Run, n: int) -> int:  # noqa: ARG001 - every handler holds one
            return n

        @committed.commit
        def nothing(tx: Tx, job: Job, n: int) -> None:
            """Do nothing: only the cost of a separate transaction remains."""

        self.kinds = {"noop": noop, "committed": committed}
        self.app.migrate()

    def enqueue(self, kind: str, jobs: int) -> None:
        for start in range(0, jobs, BATCH):
            self.app.enqueue_many(self.kinds[kind].request(n) for n in range(start, min(start + BATCH, jobs)))

    async def drain(self, kind: str, jobs: int, slots: int) -> dict[str, float]:
        self.enqueue(kind, jobs)
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
        async with start_worker(self.app.plan(slots=slots, until_idle=True)) as worker:
            cpu, began = time.process_time(), time.perf_counter()
            done = await worker.run()
            took, used = time.perf_counter() - began, time.process_time() - cpu
        assert done == jobs, f"{done} of {jobs}"
        return {"per_second": jobs / took, "python_us": used / jobs * 1e6}

    async def pick_up(self, slots: int) -> dict[str, float]:
        pickups: list[float] = []
        async with run_worker(self.app.plan(slots=slots)):
            for n in range(PICKUPS):
                self.begun = asyncio.get_running_loop().create_future()
                began = time.perf_counter()
                stored = await self.kinds["noop"].aenqueue(n)
                pickups.append(await asyncio.wait_for(self.begun, 30) - began)
                await self.kinds["noop"].aresult(stored.id, timeout=30)
        pickups.sort()
        return {"p50_ms": pickups[len(pickups) // 2] * 1e3, "p99_ms": pickups[int(len(pickups) * 0.99)] * 1e3}


def main(url: str, schema: str, what: str, jobs: int, slots: int) -> None:
    program = Program(url, schema)
    if what == "pickup":
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
    result = asyncio.run(program.pick_up(slots) if what == "pickup" else program.drain(what, jobs, slots))
    print(json.dumps(result | {"rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)


# ---------------------------------------------------------------- the measuring process
def measure_process(  # noqa: PLR0917 - a line of a table
    store: str, url: str, schema: str, what: str, jobs: int, slots: int, cpu: Callable[[], float] | None
) -> WorkerResult:
    """Run and measure one worker process. `cpu` reads the CPU seconds that the database has used."""
    command = [sys.executable, "-m", "benchmarks.worker", url, schema, what, str(jobs), str(slots)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = cpu() if cpu else 0.0
        process.stdin.write("go\n")
        process.stdin.flush()
        result = json.loads(process.stdout.readline() or "{}")
        after = cpu() if cpu else 0.0
    count = PICKUPS if what == "pickup" else jobs
    label = (
        f"pickup of one job, {count} times"
        if what == "pickup"
        else f"drain, {slots} slots" + (", with commit function" if what == "committed" else "")
    )
    return WorkerResult(
        store,
        label,
        count,
        result.get("per_second", 0.0),
        result.get("python_us", 0.0),
        (after - before) / count * 1e6 if cpu else None,
        result["rss_mb"],
        result.get("p50_ms"),
        result.get("p99_ms"),
    )


def measure_worker(
    store: str, url: str, schema: str, *, jobs: int, many: int, cpu: Callable[[], float] | None
) -> list[WorkerResult]:
    """Run all measurements of the worker on one database."""
    runs = [("noop", jobs, 100), ("noop", jobs, 1000), ("committed", max(jobs // 4, 1), 100), ("pickup", 0, 100)] + (
        [("noop", many, 1000)] if many else []
    )
    return [measure_process(store, url, schema, what, count, slots, cpu) for what, count, slots in runs]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
