"""`interlock bench`: how fast one worker is here, measured on a database of its own that goes afterwards."""

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
from ..boot import booted, running
from ..errors import InterlockError
from ..ids import uuid7
from ..run import Run
from ..stores import SQLITE
from . import screen
from .target import JsonOption, Miscalled, answering, as_it_is, knock

BATCH = 1000
PICKUPS = 200
"""How many jobs are sent one by one to a worker that waits."""
PATIENCE = 10.0
"""Seconds after which a job that a waiting worker did not begin is a fault."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What came out, with what it was measured on."""

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
    jobs: Annotated[int, typer.Option(min=1, help="How many jobs are drained.")] = 5000,
    slots: Annotated[int, typer.Option(min=1, help="How many of them the worker carries at once.")] = 100,
    database: Annotated[str | None, typer.Option(
        metavar="URL", help="A server, where a schema of its own is made and dropped, or a new SQLite file; else a temporary file.")] = None,
    json: JsonOption = False,
) -> None:
    """Measure one worker: how many jobs that do nothing it drains in a second, and how soon it begins one while it waits.

    Every job is a row, an execution and its history, each written and committed. What it made is removed. Nothing else should run meanwhile.

    Example: interlock bench --jobs 20000 --database postgresql://localhost/shop
    """
    with _place(database) as app, Status("measuring", console=screen.console(stderr=True)) as status:
        measured = Bench(app, jobs, slots, status).measure()
    if json:
        screen.as_json(measured)
        return
    screen.pairs((
        ("database", measured.database), ("python", measured.python), ("enqueue", f"{measured.enqueued_per_second:,.0f} jobs/s, {BATCH} at a time"),
        ("drain", f"{measured.jobs_per_second:,.0f} jobs/s: {jobs:,} jobs, one worker, {slots} slots"),
        ("pickup", f"p50 {measured.pickup_p50_ms:.1f} ms, p99 {measured.pickup_p99_ms:.1f} ms: {measured.pickups} jobs, one by one")))


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

    def measure(self) -> Measured:
        self._app.migrate()
        enqueued = self._enqueue()
        drained = asyncio.run(self._drain())
        waits = sorted(asyncio.run(self._pick_up()))
        url = self._app.database.url
        return Measured(
            url.partition("://")[0], platform.python_version(), self._jobs, self._slots, round(self._jobs / enqueued, 1), round(self._jobs / drained, 1),
            len(waits), round(_share(waits, 0.5) * 1000, 2), round(_share(waits, 0.99) * 1000, 2))

    def _enqueue(self) -> float:
        began = time.perf_counter()
        for start in range(0, self._jobs, BATCH):
            self._status.update(f"enqueueing: {start:,} of {self._jobs:,}")
            self._app.enqueue_many(self._kind.call(n) for n in range(start, min(start + BATCH, self._jobs)))
        return time.perf_counter() - began

    async def _drain(self) -> float:
        self._status.update(f"draining {self._jobs:,} jobs")
        async with booted(self._app.plan(slots=self._slots, until_idle=True)) as worker:
            began = time.perf_counter()
            await worker.run()
            took = time.perf_counter() - began
        self._check(self._jobs)
        return took

    async def _pick_up(self) -> list[float]:
        """Seconds from the call that enqueues a job to its handler, while the worker has nothing else."""
        waits: list[float] = []
        async with running(self._app.plan(slots=self._slots)):
            for n in range(PICKUPS):
                self._status.update(f"picking up: {n:,} of {PICKUPS:,}")
                self._begun = asyncio.get_running_loop().create_future()
                began = time.perf_counter()
                await asyncio.to_thread(self._kind.enqueue, n)
                waits.append(await asyncio.wait_for(self._begun, PATIENCE) - began)
        self._check(self._jobs + PICKUPS)
        return waits

    def _check(self, wanted: int) -> None:
        counts = self._app.status().counts
        if counts != {"standard": {"SUCCEEDED": wanted}}:
            raise InterlockError(f"Of {wanted:,} jobs not all succeeded ({counts}): what was measured means nothing. Run it again where nothing else works.")


def _share(ordered: list[float], share: float) -> float:
    """The smallest value that this share does not exceed."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


# ---------------------------------------------------------------- where
@contextmanager
def _place(url: str | None) -> Generator[App]:
    """An app on an empty database that is its own."""
    if url is None:
        with tempfile.TemporaryDirectory(prefix="interlock-bench-") as directory, _file(f"sqlite:///{Path(directory) / 'bench.db'}") as app:
            yield app
    elif url.partition("://")[0] in SQLITE:
        with _file(url) as app:
            yield app
    else:
        with answering(url), _schema(url) as app:
            yield app


@contextmanager
def _file(url: str) -> Generator[App]:
    path = Path(url.partition("://")[2].removeprefix("/"))
    if path.exists():
        raise Miscalled(f"{path} is there already: name a new file, since what a measurement made is removed with it.")
    app = App(url)
    try:
        with answering(url):
            yield app
    finally:
        app.close()
        for end in ("", "-journal", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)


@contextmanager
def _schema(url: str) -> Generator[App]:
    schema = f"interlock_bench_{uuid7()[-12:]}"
    app = App(url, schema=schema)
    as_it_is(app).close()
    knock(url)
    try:
        yield app
    finally:
        # It may not have come to be; then what went wrong before is what is to be said.
        with suppress(InterlockError), app.transaction() as tx:
            tx.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        app.close()
