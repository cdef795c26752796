"""How an image comes to be in each of its states, and what may befall whoever makes it."""

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

from apps.common.database import connect
from apps.common.tests.kits import meanwhile
from apps.studio.jobs import LEASE, Studio, build
from apps.studio.tests.images_controls import Fault
from apps.studio.tests.kit import BEGUN, Atelier
from interlock.testing import Crashed, Point

ENOUGH = 4000.0
"""Seconds after which whatever waited is due, however long it was told to wait."""
FAILED = [*BEGUN, ("running", "failed")]
BURIED = [*FAILED, ("failed", "dead_letter")]
RETRIED = [*FAILED, ("failed", "queued"), ("queued", "running")]
_numbers = itertools.count(1)


def wish() -> str:
    """What nobody has asked for yet."""
    return f"A harbour at dawn, number {next(_numbers)}"


# ---------------------------------------------------------------- in each state
def queued(atelier: Atelier) -> str:
    return atelier.order(prompt=wish())


def running(atelier: Atelier) -> str:
    """Its worker has died, and nobody knows yet."""
    job = queued(atelier)
    atelier.worker.crash_at(Point.AFTER_CLAIM)
    with pytest.raises(Crashed):
        atelier.run()
    return job


def completed(atelier: Atelier) -> str:
    job = queued(atelier)
    atelier.run()
    return job


def failed(atelier: Atelier) -> str:
    atelier.images.fail(Fault.trouble())
    return completed(atelier)


def interrupted(atelier: Atelier) -> str:
    """Its worker was stopped in good order while the provider was asked, and gave it back."""
    job, images, before = queued(atelier), atelier.images, len(atelier.images.asked)

    async def stopped() -> None:
        async with atelier.app.worker(slots=1) as worker:
            await asyncio.to_thread(images.wait, lambda: len(images.asked) > before, 20)
            worker.stop()
            worker.release()

    with images.holding():
        asyncio.run(stopped())
    return job


def rejected(atelier: Atelier) -> str:
    atelier.images.fail(Fault.blocked())
    return completed(atelier)


def dead_letter(atelier: Atelier) -> str:
    atelier.images.fail(Fault.unauthorized())
    return completed(atelier)


IN_STATE: dict[str, Callable[[Atelier], str]] = {
    "completed": completed, "rejected": rejected, "dead_letter": dead_letter, "failed": failed, "running": running, "queued": queued}
"""In an order in which no later scene disturbs an earlier one."""


# ---------------------------------------------------------------- another process
@contextmanager
def elsewhere(atelier: Atelier, **changed: Any) -> Iterator[Studio]:
    """The studio as another process has it: an app and connections of its own on the same database, and some of its means otherwise."""
    engine = connect(str(atelier.app.database.url))
    studio = build(str(atelier.app.database.url), engine, replace(atelier.studio.means, **changed), lifespan=atelier.app.lifespan)
    studio.app.database.clock = atelier.clock
    try:
        yield studio
    finally:
        studio.close()


# ---------------------------------------------------------------- what befalls a worker
def crash(atelier: Atelier, point: Point) -> None:
    """A worker dies there, and its lease ends."""
    atelier.crash(point, "image", LEASE)


def while_asked(atelier: Atelier, do: Callable[[], object]) -> None:
    """A worker runs, and this is done while the provider has been asked and has not answered. Whoever asks it next is answered at once."""
    images, before = atelier.images, len(atelier.images.asked)

    def look() -> None:
        try:
            images.wait(lambda: len(images.asked) > before, 20)
            images._gate = None
            do()
        finally:
            gate.set()

    with images.holding() as gate, meanwhile(look):
        atelier.run()


@contextmanager
def broken(atelier: Atelier, table: str, when: str = "1 = 1") -> Iterator[None]:
    """For a while the database stores no such row in this table."""
    if atelier.studio.engine.dialect.name == "sqlite":
        atelier.write(f"CREATE TRIGGER broken BEFORE INSERT ON {table} WHEN {when} BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
        yield
        atelier.write("DROP TRIGGER broken")
        return
    atelier.write("CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the disk is full'; END $$")
    atelier.write(f"CREATE TRIGGER broken BEFORE INSERT ON {table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION broken()")
    yield
    atelier.write("DROP FUNCTION broken CASCADE")


def at_once(*calls: Callable[[], object]) -> list[object]:
    """All of them at the same moment, each in a thread of its own; what each answered or raised, in their order."""
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


# ---------------------------------------------------------------- what is there
def files(directory: Path) -> dict[str, str]:
    """The originals by the names of their jobs: the hash of each. What somebody died over while writing it has no job's name."""
    found = (file for file in directory.rglob("*") if file.is_file() and re.fullmatch(r"[0-9a-f-]{36}", file.name))
    return {str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest() for file in found}


def sound(atelier: Atelier) -> None:
    """The books balance, the engine finds no fault, and each asset's image is in its place, whole."""
    atelier.check()
    there = files(atelier.directory)
    for path, sha256 in atelier.rows("SELECT path, sha256 FROM studio_assets"):
        assert there[path] == sha256
