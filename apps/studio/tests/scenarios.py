"""Scenarios: jobs in each state, crashes, concurrent calls and failing databases."""

import asyncio
import hashlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apps.common.database import make_engine
from apps.common.tests.app_kit import in_background
from apps.studio.jobs import LEASE, Studio, build
from apps.studio.tests.fake_images_controls import Fault
from apps.studio.tests.studio_kit import BEGUN, StudioKit
from interlock.testing import Crashed, Failpoint

AFTER_ANY_BACKOFF = 4000.0
"""Seconds after which whatever waited is due, however long it was told to wait."""
FAILED = [*BEGUN, ("running", "failed")]
BURIED = [*FAILED, ("failed", "dead_letter")]
RETRIED = [*FAILED, ("failed", "queued"), ("queued", "running")]
_numbers = itertools.count(1)


def new_prompt() -> str:
    """A prompt that was not used before."""
    return f"A harbour at dawn, number {next(_numbers)}"


# ---------------------------------------------------------------- jobs in each state
def queued(kit: StudioKit) -> str:
    return kit.order(prompt=new_prompt())


def running(kit: StudioKit) -> str:
    """A job whose worker has crashed without notice."""
    job = queued(kit)
    kit.worker.crash_at(Failpoint.AFTER_CLAIM)
    with pytest.raises(Crashed):
        kit.run()
    return job


def completed(kit: StudioKit) -> str:
    job = queued(kit)
    kit.run()
    return job


def failed(kit: StudioKit) -> str:
    kit.images.fail(Fault.trouble())
    return completed(kit)


def interrupted(kit: StudioKit) -> str:
    """A job that its worker returned when it was stopped during a provider call."""
    job, images, before = queued(kit), kit.images, len(kit.images.asked)

    async def stopped() -> None:
        async with kit.app.worker(slots=1) as worker:
            await asyncio.to_thread(images.wait, lambda: len(images.asked) > before, 20)
            worker.stop()
            worker.return_jobs()

    with images.holding():
        asyncio.run(stopped())
    return job


def rejected(kit: StudioKit) -> str:
    kit.images.fail(Fault.blocked())
    return completed(kit)


def dead_letter(kit: StudioKit) -> str:
    kit.images.fail(Fault.unauthorized())
    return completed(kit)


JOB_IN_STATE: dict[str, Callable[[StudioKit], str]] = {
    "completed": completed,
    "rejected": rejected,
    "dead_letter": dead_letter,
    "failed": failed,
    "running": running,
    "queued": queued,
}
"""In an order in which no later scene disturbs an earlier one."""


# ---------------------------------------------------------------- another process
@contextmanager
def another_process(kit: StudioKit, **changed: Any) -> Iterator[Studio]:
    """The studio as in another process: its own app and connections on the same database."""
    engine = make_engine(str(kit.app.database.url))
    studio = build(
        str(kit.app.database.url), engine, replace(kit.studio.dependencies, **changed), lifespan=kit.app.lifespan
    )
    studio.app.database.clock = kit.clock
    try:
        yield studio
    finally:
        studio.close()


# ---------------------------------------------------------------- faults of a worker
def crash(kit: StudioKit, point: Failpoint) -> None:
    """Crash a worker at this point and let its lease expire."""
    kit.crash(point, "image", LEASE)


def during_request(kit: StudioKit, do: Callable[[], object]) -> None:
    """Run a worker and call this during its provider call. Later calls are answered at once."""
    images, before = kit.images, len(kit.images.asked)

    def look() -> None:
        try:
            images.wait(lambda: len(images.asked) > before, 20)
            images._gate = None
            do()
        finally:
            gate.set()

    with images.holding() as gate, in_background(look):
        kit.run()


@contextmanager
def broken(kit: StudioKit, table: str, when: str = "1 = 1") -> Iterator[None]:
    """Make the database refuse such rows in this table."""
    if kit.studio.engine.dialect.name == "sqlite":
        kit.write(
            f"CREATE TRIGGER broken BEFORE INSERT ON {table} WHEN {when} BEGIN SELECT RAISE(ABORT, "
            "'the disk is full'); END"
        )
        yield
        kit.write("DROP TRIGGER broken")
        return
    kit.write(
        "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the "
        "disk is full'; END $$"
    )
    kit.write(f"CREATE TRIGGER broken BEFORE INSERT ON {table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION broken()")
    yield
    kit.write("DROP FUNCTION broken CASCADE")


def run_concurrently(*calls: Callable[[], object]) -> list[object]:
    """Run all calls at the same moment in threads; return their results or exceptions in order."""
    start, answers = threading.Barrier(len(calls)), dict[int, object]()

    def work(n: int) -> None:
        start.wait()
        try:
            answers[n] = calls[n]()
        except Exception as error:  # noqa: BLE001 - judged where the test is
            answers[n] = error

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[n] for n in range(len(calls))]


# ---------------------------------------------------------------- checks
def files(directory: Path) -> dict[str, str]:
    """The hashes of the stored images, by path. Staged files are not included."""
    found = (file for file in directory.rglob("*") if file.is_file() and re.fullmatch(r"[0-9a-f-]{36}", file.name))
    return {str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest() for file in found}


def assert_consistent(kit: StudioKit) -> None:
    """Assert that the ledger and the engine have no fault and each asset's file is complete."""
    kit.check()
    there = files(kit.directory)
    for path, sha256 in kit.rows("SELECT path, sha256 FROM studio_assets"):
        assert there[path] == sha256
