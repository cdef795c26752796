"""`interlock bench`: measures one worker on a temporary database."""

import asyncio
import math
import platform
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.status import Status

from ..app import App
from ..core.ids import uuid7
from ..errors import InterlockError
from ..jobs.run import Run
from ..store import SQLITE
from ..worker.assembly import run_worker, start_worker
from . import output
from .common_options import CommandError, JsonOption, check_reachable, name_database_errors, open_unmigrated

BATCH = 1000
PICKUPS = 200
"""How many jobs are enqueued one by one for an idle worker."""
PICKUP_TIMEOUT = 10.0
"""Seconds in which an idle worker must start a job."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The measurements, with the database and Python version that they were taken on."""

    database: str
    python: str
    jobs: int
    slots: int
    enqueued_per_second: float
    jobs_per_second: float
    pickups: int
    pickup_p50_ms: float
    pickup_p99_ms: float


def bench(
    jobs: Annotated[int, typer.Option(min=1, help="How many jobs to run.")] = 5000,
    slots: Annotated[int, typer.Option(min=1, help="How many jobs run at once.")] = 100,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A server, on which a temporary schema is created, or a new SQLite file; by default a temporary file.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure one worker: how many empty jobs it runs per second, and how soon an idle worker starts a job.

    Every job is stored with its execution and history. The database is removed afterwards. Run nothing else on the
    machine at the same time.

    Example: interlock bench --jobs 20000 --database postgresql://localhost/shop
    """
    with _place(database) as app, Status("measuring", console=output.make_console(stderr=True)) as status:
        measured = Bench(app, jobs, slots, status).measure()
    if json:
        output.print_json(measured)
        return
    output.print_fields(
        (
            ("database", measured.database),
            ("python", measured.python),
            ("enqueue", f"{measured.enqueued_per_second:,.0f} jobs/s, {BATCH} at a time"),
            ("drain", f"{measured.jobs_per_second:,.0f} jobs/s: {jobs:,} jobs, one worker, {slots} slots"),
            (
                "pickup",
                (
                    f"p50 {measured.pickup_p50_ms:.1f} ms, p99 {measured.pickup_p99_ms:.1f} ms: {measured.pickups} "
                    "jobs, one by one"
                ),
            ),
        )
    )


class Bench:
    """One measurement on an empty database."""

    def __init__(self, app: App, jobs: int, slots: int, status: Status) -> None:
        self._app, self._jobs, self._slots, self._status = app, jobs, slots, status
        self._begun: asyncio.Future[float] | None = None

        @app.job(kind="bench.nothing")
        async def nothing(run: Run, n: int) -> None:
            del run, n
            if self._begun is not None:
                self._begun.set_result(time.perf_counter())

        self._kind = nothing

    def measure(self) -> BenchResult:
        self._app.migrate()
        enqueued = self._enqueue()
        drained = asyncio.run(self._drain())
        pickups = sorted(asyncio.run(self._pick_up()))
        url = self._app.database.url
        return BenchResult(
            url.partition("://")[0],
            platform.python_version(),
            self._jobs,
            self._slots,
            round(self._jobs / enqueued, 1),
            round(self._jobs / drained, 1),
            len(pickups),
            round(_share(pickups, 0.5) * 1000, 2),
            round(_share(pickups, 0.99) * 1000, 2),
        )

    def _enqueue(self) -> float:
        began = time.perf_counter()
        for start in range(0, self._jobs, BATCH):
            self._status.update(f"enqueueing: {start:,} of {self._jobs:,}")
            self._app.enqueue_many(self._kind.request(n) for n in range(start, min(start + BATCH, self._jobs)))
        return time.perf_counter() - began

    async def _drain(self) -> float:
        self._status.update(f"draining {self._jobs:,} jobs")
        async with start_worker(self._app.plan(slots=self._slots, until_idle=True)) as worker:
            began = time.perf_counter()
            await worker.run()
            took = time.perf_counter() - began
        self._check(self._jobs)
        return took

    async def _pick_up(self) -> list[float]:
        """Return the seconds from each enqueue to the start of its handler, with an idle worker."""
        pickups: list[float] = []
        async with run_worker(self._app.plan(slots=self._slots)):
            for n in range(PICKUPS):
                self._status.update(f"picking up: {n:,} of {PICKUPS:,}")
                self._begun = asyncio.get_running_loop().create_future()
                began = time.perf_counter()
                await asyncio.to_thread(self._kind.enqueue, n)
                pickups.append(await asyncio.wait_for(self._begun, PICKUP_TIMEOUT) - began)
        self._check(self._jobs + PICKUPS)
        return pickups

    def _check(self, wanted: int) -> None:
        counts = self._app.status().counts
        if counts != {"standard": {"SUCCEEDED": wanted}}:
            raise InterlockError(
                f"Not all of {wanted:,} jobs succeeded ({counts}), so the measurement is not valid. Run it again."
            )


def _share(ordered: list[float], share: float) -> float:
    """Return this quantile of an ordered list."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


# ---------------------------------------------------------------- the database
@contextmanager
def _place(url: str | None) -> Generator[App]:
    """Yield an app on a temporary database."""
    if url is None:
        with (
            tempfile.TemporaryDirectory(prefix="interlock-bench-") as directory,
            _file(f"sqlite:///{Path(directory) / 'bench.db'}") as app,
        ):
            yield app
    elif url.partition("://")[0] in SQLITE:
        with _file(url) as app:
            yield app
    else:
        with name_database_errors(url), _schema(url) as app:
            yield app


@contextmanager
def _file(url: str) -> Generator[App]:
    path = Path(url.partition("://")[2].removeprefix("/"))
    if path.exists():
        raise CommandError(f"{path} already exists: name a new file. The benchmark deletes its file.")
    app = App(url)
    try:
        with name_database_errors(url):
            yield app
    finally:
        app.close()
        for end in ("", "-journal", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)


@contextmanager
def _schema(url: str) -> Generator[App]:
    schema = f"interlock_bench_{uuid7()[-12:]}"
    app = App(url, schema=schema)
    open_unmigrated(app).close()
    check_reachable(url)
    try:
        yield app
    finally:
        # The schema may not exist; the first error is the one to report.
        with suppress(InterlockError), app.transaction() as tx:
            tx.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        app.close()
